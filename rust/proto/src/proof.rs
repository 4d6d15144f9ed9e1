//! Both sides prove the shared key over all bytes of the handshake (docs/protocol.md 4.2).
//! It compares nothing but MACs; which fields must agree is judged in `handshake`.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// 32 bytes of SHA-256, a MAC or a derived key.
pub type Digest = [u8; 32];

/// The key of one direction of a sealed link; wiped when dropped, and never printed.
#[derive(Clone, Eq, PartialEq)]
pub struct TrafficKey(Zeroizing<Digest>);

impl core::ops::Deref for TrafficKey {
    type Target = Digest;

    fn deref(&self) -> &Digest {
        &self.0
    }
}

impl core::fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TrafficKey")
    }
}

/// HKDF's pseudo-random key; kept instead of the key itself and wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<Digest>);

impl Secret {
    /// Extracts from the 32 bytes of the key file; the caller wipes its own copy.
    #[must_use]
    pub fn from_key(key: &[u8; 32]) -> Self {
        let (mut extracted, _) = Hkdf::<Sha256>::extract(Some(b"stagelink/v1 psk"), key);
        let secret = Self(Zeroizing::new(extracted.into()));
        extracted.as_mut_slice().zeroize();
        secret
    }

    /// MAC of the connector over `th1`.
    #[must_use]
    pub fn connector_mac(&self, th1: &Digest) -> Digest {
        self.mac(b"stagelink/v1 proof connector\0", th1)
    }

    /// MAC of the acceptor over `th2`.
    #[must_use]
    pub fn acceptor_mac(&self, th2: &Digest) -> Digest {
        self.mac(b"stagelink/v1 proof acceptor\0", th2)
    }

    /// MAC of a refused message over `thr`.
    #[must_use]
    pub fn refused_mac(&self, thr: &Digest) -> Digest {
        self.mac(b"stagelink/v1 refuse acceptor\0", thr)
    }

    /// Traffic key from connector to acceptor, for the sealed suites.
    #[must_use]
    pub fn traffic_to_acceptor(&self, th3: &Digest) -> TrafficKey {
        TrafficKey(self.expand(b"stagelink/v1 traffic c2a\0", th3))
    }

    /// Traffic key from acceptor to connector, for the sealed suites.
    #[must_use]
    pub fn traffic_to_connector(&self, th3: &Digest) -> TrafficKey {
        TrafficKey(self.expand(b"stagelink/v1 traffic a2c\0", th3))
    }

    fn mac(&self, label: &[u8], hash: &Digest) -> Digest {
        let key = self.expand(label, hash);
        hmac_sha256(&key, &[hash])
    }

    /// HKDF-Expand to 32 bytes, which is one block of RFC 5869: HMAC(PRK, info || 0x01).
    fn expand(&self, label: &[u8], hash: &Digest) -> Zeroizing<Digest> {
        Zeroizing::new(hmac_sha256(&self.0, &[label, hash, &[1]]))
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// `th1`, over the whole hello and challenge frames.
#[must_use]
pub fn hello_hash(hello: &[u8], challenge: &[u8]) -> Digest {
    hash(&[b"stagelink/v1 hello\0", hello, challenge])
}

/// `th2`, over the whole proof frame and the acceptor's identity block.
#[must_use]
pub fn welcome_hash(th1: &Digest, proof: &[u8], identity: &[u8]) -> Digest {
    hash(&[b"stagelink/v1 welcome\0", th1, proof, identity])
}

/// `thr`, over the whole proof frame and the refused payload up to its MAC.
#[must_use]
pub fn refused_hash(th1: &Digest, proof: &[u8], refused: &[u8]) -> Digest {
    hash(&[b"stagelink/v1 refused\0", th1, proof, refused])
}

/// `th3`, from which the traffic keys come.
#[must_use]
pub fn ready_hash(th2: &Digest, acceptor_mac: &Digest) -> Digest {
    hash(&[b"stagelink/v1 ready\0", th2, acceptor_mac])
}

/// Compares two MACs in a time that does not depend on their bytes.
#[must_use]
pub fn macs_agree(expected: &Digest, got: &Digest) -> bool {
    expected.ct_eq(got).into()
}

fn hash(parts: &[&[u8]]) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

fn hmac_sha256(key: &Digest, parts: &[&[u8]]) -> Digest {
    // HMAC fills a key up to the hash's block with zeros: done here, no length can be wrong.
    let mut block = Zeroizing::new([0_u8; 64]);
    for (to, from) in block.iter_mut().zip(key) {
        *to = *from;
    }
    let mut mac = Hmac::<Sha256>::new((&*block).into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use hkdf::Hkdf;
    use sha2::Sha256;

    use super::Secret;

    #[test]
    fn expansion_is_the_one_of_rfc_5869() {
        let (key, hash) = ([7; 32], [9; 32]);
        let secret = Secret::from_key(&key);
        let (_, reference) = Hkdf::<Sha256>::extract(Some(b"stagelink/v1 psk"), &key);
        let mut expected = [0; 32];
        reference
            .expand_multi_info(&[b"label\0", &hash], &mut expected)
            .expect("32 bytes fit");
        assert_eq!(*secret.expand(b"label\0", &hash), expected);
    }
}
