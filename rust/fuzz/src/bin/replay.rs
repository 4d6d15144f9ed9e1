//! The targets without libFuzzer: replays every seed, then seeded changes of them for a while.
//!
//! It follows no coverage; cargo-fuzz does. A failing input is left in `artifacts/TARGET/`.
//! Usage: replay [--seconds S] [--seed N] [TARGET ...] [FILE ...]
#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use stagelink_fuzz::{TARGETS, Target};

/// Longest input that is made.
const INPUT_BYTES_MAX: usize = 8192;

struct Arguments {
    seconds: f64,
    seed: u64,
    names: Vec<String>,
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("replay: error: {text}");
            return ExitCode::from(2);
        }
    };
    let mut fine = true;
    for target in TARGETS {
        if arguments.names.is_empty() || arguments.names.iter().any(|name| name == target.0) {
            fine &= run(target, &arguments);
        }
    }
    if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(target: Target, arguments: &Arguments) -> bool {
    let seeds: Vec<Vec<u8>> = if arguments.files.is_empty() {
        ["seeds", "corpus"]
            .iter()
            .flat_map(|name| read_folder(&folder(name).join(target.0)))
            .collect()
    } else {
        arguments
            .files
            .iter()
            .filter_map(|file| std::fs::read(file).ok())
            .collect()
    };
    for seed in &seeds {
        if !judge(target, seed) {
            return false;
        }
    }
    let end = Instant::now() + Duration::from_secs_f64(arguments.seconds);
    let mut random = Random(arguments.seed);
    let mut inputs = seeds.len();
    while Instant::now() < end {
        for _ in 0..64 {
            if !judge(target, &random.change(&seeds)) {
                return false;
            }
            inputs += 1;
        }
    }
    let line = format!(
        "replay: {}: {} seeds, {inputs} inputs\n",
        target.0,
        seeds.len()
    );
    stdout().write_all(line.as_bytes()).is_ok()
}

/// False, and the input kept, where the target panics; the panic has said why.
fn judge((name, function): Target, input: &[u8]) -> bool {
    if catch_unwind(|| function(input)).is_ok() {
        return true;
    }
    let place = folder("artifacts").join(name);
    let file = place.join(format!("replay-{:016x}", digest(input)));
    let kept = std::fs::create_dir_all(&place).and_then(|()| std::fs::write(&file, input));
    eprintln!("replay: {name} failed; input {} ({kept:?})", file.display());
    false
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The files of a folder in the order of their names.
fn read_folder(path: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(path)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        })
        .unwrap_or_default();
    files.sort();
    files
        .iter()
        .filter_map(|file| std::fs::read(file).ok())
        .collect()
}

/// FNV-1a, to name a file.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Inputs made from seeds; the same for the same number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    fn change(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = match self.below(32) {
            0 => (0..self.below(256))
                .map(|_| self.next().to_le_bytes()[0])
                .collect(),
            _ => seeds
                .get(self.below(seeds.len()))
                .cloned()
                .unwrap_or_default(),
        };
        for _ in 0..self.below(6) {
            self.change_once(&mut input, seeds);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change_once(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(input.len());
        match self.below(7) {
            0 => input.truncate(at),
            1 => input.insert(at, self.next().to_le_bytes()[0]),
            2 if !input.is_empty() => drop(input.remove(at)),
            3 => self.put_number(input, at),
            4 => {
                if let Some(other) = seeds.get(self.below(seeds.len())) {
                    input.truncate(at);
                    input.extend(&other[self.below(other.len())..]);
                }
            }
            5 if at + 4 <= input.len() => {
                let end = at + self.below(input.len() - at);
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            _ if !input.is_empty() => input[at] ^= 1 << self.below(8),
            _ => {}
        }
    }

    /// A number at the edge of something, little-endian, in one, two, four or eight bytes.
    fn put_number(&mut self, input: &mut [u8], at: usize) {
        const EDGES: [u64; 10] = [0, 1, 2, 64, 255, 256, 65_535, 65_536, u64::MAX, 1 << 31];
        let bytes = EDGES[self.below(EDGES.len())].to_le_bytes();
        let count = (1 << self.below(4)).min(input.len() - at);
        input[at..at + count].copy_from_slice(&bytes[..count]);
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seconds: 1.0,
        seed: 1,
        names: Vec::new(),
        files: Vec::new(),
    };
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .ok_or_else(|| format!("{word} expects a value"))
        };
        match word.as_str() {
            "--seconds" => arguments.seconds = number(&value()?)?,
            "--seed" => arguments.seed = number(&value()?)?,
            name if TARGETS.iter().any(|target| target.0 == name) => arguments.names.push(word),
            file if Path::new(file).is_file() => arguments.files.push(PathBuf::from(file)),
            other => return Err(format!("expected a target or a file, came {other:?}")),
        }
    }
    Ok(arguments)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("expected a number, came {text:?}"))
}
