//! The program: one line of address, one answer a command, and an end when its input ends.
//!
//! What the commands do is tested on the library.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

#[test]
fn the_program_answers_each_line_and_ends_with_its_input() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_stagelink-fault-proxy"))
        .args(["--target", &listener.local_addr().unwrap().to_string()])
        .args(["--seed", "7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let address: SocketAddr = next().parse().unwrap();
    let _near = TcpStream::connect(address).unwrap();
    let _far = listener.accept().unwrap();
    writeln!(input, "black_hole up").unwrap();
    assert_eq!(next(), r#"ok {"set":1,"past":0}"#);
    writeln!(input, "explode").unwrap();
    assert!(next().starts_with("error unknown_verb: "));
    writeln!(input, "status").unwrap();
    let status = next();
    assert!(
        status.starts_with(r#"ok {"connections":[{"id":0,"open":true,"up":{"#),
        "{status}"
    );
    drop(input);
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_wrong_argument_ends_the_program_with_two() {
    let output = Command::new(env!("CARGO_BIN_EXE_stagelink-fault-proxy"))
        .arg("--seed")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.starts_with(b"error: "));
}
