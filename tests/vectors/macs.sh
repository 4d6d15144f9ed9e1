#!/usr/bin/env bash
# Computes the MACs of docs/protocol.md 4.2 with the openssl command, for the literals in tables/handshake.txt.
# It shares nothing with the implementations and decides nothing. Usage, file names below bin/handshake:
#   KEY=hex ./macs.sh connector HELLO CHALLENGE
#   KEY=hex ./macs.sh acceptor  HELLO CHALLENGE PROOF WELCOME     (the welcome's own MAC is not read)
#   KEY=hex ./macs.sh refused   HELLO CHALLENGE PROOF REFUSED     (the refused frame's own MAC is not read)
#   ... and th1, th2, th3, c2a, a2c in place of the first word print the values between.
set -euo pipefail
cd "$(dirname "$0")/bin/handshake"
key=${KEY:-000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}
want=$1 hello=$2.bin challenge=$3.bin proof=${4:-}.bin answer=${5:-}.bin

bytes() { xxd -r -p; }
sha() { openssl dgst -sha256 -binary | xxd -p -c 64; }
hmac() { openssl dgst -sha256 -mac HMAC -macopt "hexkey:$1" -binary | xxd -p -c 64; } # key; data on stdin
# HKDF-Expand to 32 bytes is one HMAC over label, zero byte, context and the counter 01 (RFC 5869).
expand() { { printf '%s\0' "$1"; printf '%s' "$2" | bytes; printf '\001'; } | hmac "$prk"; }
prove() { printf '%s' "$2" | bytes | hmac "$(expand "$1" "$2")"; }

prk=$(printf '%s' "$key" | bytes | hmac "$(printf 'stagelink/v1 psk' | xxd -p -c 64)")
th1=$({ printf 'stagelink/v1 hello\0'; cat "$hello" "$challenge"; } | sha)
th2() { { printf 'stagelink/v1 welcome\0'; printf '%s' "$th1" | bytes; cat "$proof"; tail -c +33 "$answer" | head -c 128; } | sha; }
thr() { { printf 'stagelink/v1 refused\0'; printf '%s' "$th1" | bytes; cat "$proof"; tail -c +33 "$answer" | head -c 224; } | sha; }
mac_a() { prove 'stagelink/v1 proof acceptor' "$(th2)"; }
th3() { { printf 'stagelink/v1 ready\0'; printf '%s%s' "$(th2)" "$(mac_a)" | bytes; } | sha; }

case $want in
  connector) prove 'stagelink/v1 proof connector' "$th1" ;;
  acceptor) mac_a ;;
  refused) prove 'stagelink/v1 refuse acceptor' "$(thr)" ;;
  th1) echo "$th1" ;;
  th2) th2 ;;
  th3) th3 ;;
  c2a | a2c) expand "stagelink/v1 traffic $want" "$(th3)" ;;
  *) echo "macs.sh: unknown value $want" >&2; exit 2 ;;
esac
