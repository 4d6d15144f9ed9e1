//! Reads commands from lines of text.
//!
//! A line is `VERB [up|down|both] NUMBERS... [@CONNECTION]`. Without a direction both are meant;
//! without `@` every connection, those to come included. Connections count from 0 in the order in
//! which they were accepted. OFFSET is a byte's place in its sender's stream, from 0.
//!
//! | line | what happens |
//! | --- | --- |
//! | `latency D MS [JITTER_MS]` | all comes MS later, and up to JITTER_MS more; order is kept |
//! | `rate D BYTES_PER_SECOND` | forward no faster |
//! | `slice D BYTES_MAX [PAUSE_MS]` | write pieces of 1..=BYTES_MAX bytes, with a pause between |
//! | `black_hole D [OFFSET]` | forward nothing (from OFFSET on) and keep the connection open |
//! | `half_close D [OFFSET]` | end the stream (before OFFSET); what comes after is swallowed |
//! | `truncate D OFFSET` | end both directions in order, before OFFSET of this one |
//! | `reset D [OFFSET]` | end the connection with RST at both ends (before OFFSET) |
//! | `flip D OFFSET [MASK]` | exclusive-or one byte with MASK, or turn one drawn bit |
//! | `flip_rate D N` | turn one drawn bit in one byte of N, drawn |
//! | `duplicate D OFFSET BYTES` | send BYTES bytes from OFFSET twice |
//! | `reorder D OFFSET BYTES` | swap BYTES bytes from OFFSET with the BYTES after them |
//! | `heal [D]` | forget every fault; what was held back goes on at once |
//! | `status` | one line of JSON: what crossed, and which faults took effect |

use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use crate::command::{Command, CommandError, Direction, Order, Request};
use crate::limits::{DELAY_MAX, WINDOW_BYTES_MAX};

impl FromStr for Request {
    type Err = CommandError;

    fn from_str(line: &str) -> Result<Self, CommandError> {
        let mut words = Words::new(line)?;
        if words.verb == "status" {
            words.end()?;
            return Ok(Self::Status);
        }
        let order = parse_order(&mut words)?;
        words.end()?;
        Ok(Self::Apply(Command {
            order,
            direction: words.direction,
            connection: words.connection,
        }))
    }
}

fn parse_order(words: &mut Words<'_>) -> Result<Order, CommandError> {
    Ok(match words.verb {
        "latency" => Order::Latency {
            fixed: words.milliseconds()?,
            jitter: words.milliseconds_or_none()?,
        },
        "rate" => Order::Rate {
            bytes_per_second: words.positive(u64::MAX)?,
        },
        "slice" => Order::Slice {
            bytes_max: words.positive(u64::MAX)?,
            pause: words.milliseconds_or_none()?,
        },
        "black_hole" => Order::BlackHole {
            at: words.number_or_none()?,
        },
        "half_close" => Order::HalfClose {
            at: words.number_or_none()?,
        },
        "truncate" => Order::Truncate {
            at: words.number()?,
        },
        "reset" => Order::Reset {
            at: words.number_or_none()?,
        },
        "flip" => Order::Flip {
            at: words.number()?,
            mask: words.mask_or_none()?,
        },
        "flip_rate" => Order::FlipRate {
            n: words.positive(u64::MAX)?,
        },
        "duplicate" => Order::Duplicate {
            at: words.number()?,
            bytes: words.window()?,
        },
        "reorder" => Order::Reorder {
            at: words.number()?,
            bytes: words.window()?,
        },
        "heal" => Order::Heal,
        other => return Err(unknown_verb(other)),
    })
}

fn unknown_verb(verb: &str) -> CommandError {
    CommandError::new(
        "unknown_verb",
        format!("expected a command such as heal or status, came {verb:?}"),
    )
}

/// The words of one line, verb, direction and connection taken out.
struct Words<'a> {
    verb: &'a str,
    direction: Option<Direction>,
    connection: Option<u64>,
    rest: std::iter::Peekable<SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Result<Self, CommandError> {
        let line = line.trim();
        let (line, connection) = match line.rsplit_once('@') {
            Some((before, number)) => (before, Some(parse_number(number)?)),
            None => (line, None),
        };
        let mut rest = line.split_whitespace().peekable();
        let verb = rest.next().ok_or_else(|| unknown_verb(""))?;
        let direction = match rest.peek() {
            Some(&"up") => Some(Direction::Up),
            Some(&"down") => Some(Direction::Down),
            _ => None,
        };
        if direction.is_some() || rest.peek() == Some(&"both") {
            rest.next();
        }
        Ok(Self {
            verb,
            direction,
            connection,
            rest,
        })
    }

    fn number(&mut self) -> Result<u64, CommandError> {
        self.number_or_none()?.ok_or_else(|| {
            CommandError::new(
                "missing_number",
                format!("{} expects a number and the line ends", self.verb),
            )
        })
    }

    fn number_or_none(&mut self) -> Result<Option<u64>, CommandError> {
        self.rest.next().map(parse_number).transpose()
    }

    fn positive(&mut self, most: u64) -> Result<u64, CommandError> {
        let number = self.number()?;
        if (1..=most).contains(&number) {
            return Ok(number);
        }
        Err(CommandError::new(
            "bad_number",
            format!("{} expects 1..={most}, came {number}", self.verb),
        ))
    }

    fn window(&mut self) -> Result<usize, CommandError> {
        let most = u64::try_from(WINDOW_BYTES_MAX).unwrap_or(u64::MAX);
        let bytes = self.positive(most)?;
        Ok(usize::try_from(bytes).unwrap_or(WINDOW_BYTES_MAX))
    }

    fn mask_or_none(&mut self) -> Result<Option<u8>, CommandError> {
        let Some(number) = self.number_or_none()? else {
            return Ok(None);
        };
        match u8::try_from(number) {
            Ok(mask) if mask != 0 => Ok(Some(mask)),
            _ => Err(CommandError::new(
                "bad_number",
                format!("a mask is 1..=255, came {number}"),
            )),
        }
    }

    fn milliseconds(&mut self) -> Result<Duration, CommandError> {
        let verb = self.verb;
        let word = self.rest.next().ok_or_else(|| {
            CommandError::new(
                "missing_number",
                format!("{verb} expects milliseconds and the line ends"),
            )
        })?;
        word.parse::<f64>()
            .ok()
            .and_then(|value| Duration::try_from_secs_f64(value / 1000.0).ok())
            .filter(|delay| *delay <= DELAY_MAX)
            .ok_or_else(|| {
                CommandError::new(
                    "bad_number",
                    format!("{verb} expects milliseconds, at most an hour of them, came {word:?}"),
                )
            })
    }

    fn milliseconds_or_none(&mut self) -> Result<Duration, CommandError> {
        if self.rest.peek().is_none() {
            return Ok(Duration::ZERO);
        }
        self.milliseconds()
    }

    fn end(&mut self) -> Result<(), CommandError> {
        match self.rest.next() {
            None => Ok(()),
            Some(word) => Err(CommandError::new(
                "trailing_word",
                format!(
                    "{} expects no more than what came before {word:?}",
                    self.verb
                ),
            )),
        }
    }
}

fn parse_number(word: &str) -> Result<u64, CommandError> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.map_err(|_| CommandError::new("bad_number", format!("expected a number, came {word:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        match line.parse() {
            Ok(Request::Apply(command)) => command,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn a_line_names_order_direction_and_connection() {
        let wanted = Command {
            order: Order::Flip {
                at: 132,
                mask: Some(0x80),
            },
            direction: Some(Direction::Down),
            connection: Some(3),
        };
        assert_eq!(command("flip down 132 0x80 @3"), wanted);
    }

    #[test]
    fn a_line_without_a_direction_means_both() {
        for line in ["heal", "heal both", "  heal  "] {
            assert_eq!(command(line).direction, None, "{line}");
        }
        assert_eq!(
            command("latency 1.5").order,
            Order::Latency {
                fixed: Duration::from_micros(1500),
                jitter: Duration::ZERO
            }
        );
    }

    #[test]
    fn a_bad_line_is_refused_by_name() {
        for (line, reason) in [
            ("", "unknown_verb"),
            ("explode", "unknown_verb"),
            ("flip down", "missing_number"),
            ("latency", "missing_number"),
            ("flip down ten", "bad_number"),
            ("flip down 1 256", "bad_number"),
            ("flip down 1 0", "bad_number"),
            ("rate up 0", "bad_number"),
            ("latency up -1", "bad_number"),
            ("latency up 1e9", "bad_number"),
            ("reorder up 0 99999999999", "bad_number"),
            ("heal @x", "bad_number"),
            ("heal now", "trailing_word"),
            ("status all", "trailing_word"),
        ] {
            assert_eq!(
                line.parse::<Request>().unwrap_err().reason,
                reason,
                "{line:?}"
            );
        }
    }
}
