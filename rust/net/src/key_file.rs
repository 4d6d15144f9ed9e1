//! Reads the shared key from a file that nobody else can read.
//!
//! The key never comes from an argument or the environment, and never leaves this process.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::error::LinkError;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Characters of a key written in hexadecimal.
const HEX_CHARS: usize = 2 * KEY_BYTES;

/// Read and check a key file: 32 raw bytes, or 64 hexadecimal digits and a line end.
///
/// Refused by name: `key_missing`, `key_symlink`, `key_kind`, `key_owner`, `key_mode`, `key_size`.
pub fn read_key_file(path: &str) -> Result<Zeroizing<[u8; KEY_BYTES]>, LinkError> {
    let file = open(path)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| unreadable(path, error))?;
    check_owner_and_mode(path, &stat)?;
    // One byte more than the longest good file (digits, CR, LF) shows that a file is too long.
    let mut bytes = Zeroizing::new([0_u8; HEX_CHARS + 3]);
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(&file, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(unreadable(path, error)),
        }
    }
    parse_key(path, &bytes[..filled])
}

fn open(path: &str) -> Result<OwnedFd, LinkError> {
    // NONBLOCK keeps a FIFO in the key's place from holding the process up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => LinkError::config(
            "key_missing",
            format!("key file {path} does not exist; make one with: stagelink keygen {path}"),
        ),
        Errno::LOOP => LinkError::config(
            "key_symlink",
            format!("key file {path} is a symbolic link; give the path of the file itself"),
        ),
        error => unreadable(path, error),
    })
}

fn unreadable(path: &str, error: Errno) -> LinkError {
    let why = std::io::Error::from(error);
    LinkError::config(
        "key_missing",
        format!("key file {path} cannot be read: {why}; it must be a file of this user"),
    )
}

fn check_owner_and_mode(path: &str, stat: &Stat) -> Result<(), LinkError> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Err(LinkError::config(
            "key_kind",
            format!(
                "key file {path} is a {}, expected a regular file",
                kind_name(kind)
            ),
        ));
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        return Err(LinkError::config(
            "key_owner",
            format!(
                "key file {path} belongs to user {}, expected user {user} or root",
                stat.st_uid
            ),
        ));
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(LinkError::config(
            "key_mode",
            format!(
                "key file {path} has mode {mode:04o}, so that others can reach it; \
                 expected 0600: chmod 600 {path}"
            ),
        ));
    }
    Ok(())
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "folder",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "special file",
    }
}

fn parse_key(path: &str, bytes: &[u8]) -> Result<Zeroizing<[u8; KEY_BYTES]>, LinkError> {
    let mut key = Zeroizing::new([0_u8; KEY_BYTES]);
    if bytes.len() == KEY_BYTES {
        key.copy_from_slice(bytes);
        return Ok(key);
    }
    let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
    if digits.len() == HEX_CHARS && digits.iter().all(u8::is_ascii_hexdigit) {
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_value(pair[0]) << 4 | hex_value(pair[1]);
        }
        return Ok(key);
    }
    let came = if bytes.len() > HEX_CHARS + 2 {
        format!("more than {} bytes", HEX_CHARS + 2)
    } else {
        format!("{} bytes", bytes.len())
    };
    Err(LinkError::config(
        "key_size",
        format!(
            "key file {path} holds {came}, expected 32 bytes or 64 hexadecimal digits; \
             make one with: stagelink keygen"
        ),
    ))
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_raw_and_in_digits() {
        let raw: Vec<u8> = (0..32).collect();
        let digits: Vec<String> = raw.iter().map(|byte| format!("{byte:02X}")).collect();
        let digits = digits.concat();
        for text in [
            digits.clone(),
            format!("{digits}\n"),
            format!("{digits}\r\n"),
        ] {
            assert_eq!(&parse_key("k", text.as_bytes()).unwrap()[..], &raw[..]);
        }
        assert_eq!(&parse_key("k", &raw).unwrap()[..], &raw[..]);
    }

    #[test]
    fn a_password_is_not_a_key() {
        for text in [&b"secret"[..], b"", &[b'g'; 64], &[b'a'; 67], &[b'a'; 33]] {
            assert_eq!(parse_key("k", text).unwrap_err().reason, "key_size");
        }
    }
}
