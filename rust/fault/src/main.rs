//! The proxy as a program: its address on the first line, then an answer to each line of input.
//!
//! It ends when its standard input does. Answers are `ok JSON` or `error REASON: TEXT`.

use std::io::{BufRead, Write, stdin, stdout};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use stagelink_fault::FaultProxy;

const USAGE: &str = "stagelink-fault-proxy --target HOST:PORT [--listen HOST:PORT] [--seed N]";

struct Arguments {
    listen: SocketAddr,
    target: SocketAddr,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("error: {text}; usage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> std::io::Result<()> {
    let proxy = FaultProxy::start(arguments.listen, arguments.target, arguments.seed)?;
    let mut out = stdout().lock();
    writeln!(out, "{}", proxy.address())?;
    out.flush()?;
    for line in stdin().lock().lines() {
        let line = line?;
        match proxy.control(&line) {
            Ok(answer) => writeln!(out, "ok {answer}")?,
            Err(error) => writeln!(out, "error {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut target = None;
    let mut seed = 0;
    while let Some(name) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{name} expects a value"))?;
        match name.as_str() {
            "--listen" => listen = address(&value)?,
            "--target" => target = Some(address(&value)?),
            "--seed" => {
                seed = value
                    .parse()
                    .map_err(|_| format!("--seed expects a number, came {value:?}"))?;
            }
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok(Arguments {
        listen,
        target: target.ok_or_else(|| String::from("--target is missing"))?,
        seed,
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(|| format!("expected HOST:PORT, came {text:?}"))
}
