#!/usr/bin/env bash
# Computes the MACs of docs/protocol.md 4.2 with openssl, for the literals in tables/handshake.txt.
# It shares nothing with the implementations. Usage, with names of files below bin/handshake:
#   KEY=hex ./macs.sh connector HELLO CHALLENGE
#   KEY=hex ./macs.sh acceptor  HELLO CHALLENGE PROOF WELCOME    (the file's own MAC is not read)
#   KEY=hex ./macs.sh refused   HELLO CHALLENGE PROOF REFUSED    (the file's own MAC is not read)
# th1, th2, th3, c2a or a2c in place of the first word prints that value of a welcome's handshake.
set -euo pipefail
cd "$(dirname "$0")/bin/handshake"
key=${KEY:-000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}
want=$1 hello=$2.bin challenge=$3.bin proof=${4:-}.bin answer=${5:-}.bin

hex() { xxd -p -c 64; }
bytes() { printf '%s' "$@" | xxd -r -p; }
sha() { openssl dgst -sha256 -binary | hex; }
hmac() { openssl dgst -sha256 -mac HMAC -macopt "hexkey:$1" -binary | hex; } # data on stdin
# HKDF-Expand to 32 bytes is one HMAC over label, zero byte, context and the counter 01 (RFC 5869).
expand() { { printf '%s\0' "stagelink/v1 $1"; bytes "$2"; printf '\001'; } | hmac "$prk"; }
prove() { bytes "$2" | hmac "$(expand "$1" "$2")"; }
payload() { tail -c +33 "$answer" | head -c "$1"; }

prk=$(bytes "$key" | hmac "$(printf 'stagelink/v1 psk' | hex)")
th1=$({ printf 'stagelink/v1 hello\0'; cat "$hello" "$challenge"; } | sha)
th2() { { printf 'stagelink/v1 welcome\0'; bytes "$th1"; cat "$proof"; payload 128; } | sha; }
thr() { { printf 'stagelink/v1 refused\0'; bytes "$th1"; cat "$proof"; payload 224; } | sha; }
mac_a() { prove 'proof acceptor' "$(th2)"; }
th3() { { printf 'stagelink/v1 ready\0'; bytes "$(th2)" "$(mac_a)"; } | sha; }

case $want in
  connector) prove 'proof connector' "$th1" ;;
  acceptor) mac_a ;;
  refused) prove 'refuse acceptor' "$(thr)" ;;
  th1) echo "$th1" ;;
  th2) th2 ;;
  th3) th3 ;;
  c2a | a2c) expand "traffic $want" "$(th3)" ;;
  *) echo "macs.sh: unknown value $want" >&2; exit 2 ;;
esac
