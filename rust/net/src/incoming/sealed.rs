//! Rows of a sealed link: each record is received whole, opened, and copied to its place.
//!
//! While one record is opened the kernel receives the next. What a record is, is `seal`'s affair.

use rustix::io::Errno;
use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::limits;
use stagelink_proto::rows::ExpectedRows;
use stagelink_proto::seal::Records;

use super::Incoming;
use crate::boundary::Trouble;
use crate::deadline::Deadline;
use crate::lent::LentMut;
use crate::seal::Head;
use crate::wait::Wait;

impl Incoming {
    /// Record after record: each is received whole, opened, and copied to its place.
    pub(super) fn read_sealed(
        &mut self,
        frame: ExpectedRows,
        rows: &mut LentMut<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.open_rows(frame, &mut scratch, rows, wait);
        self.scratch = scratch;
        result
    }

    fn open_rows(
        &mut self,
        frame: ExpectedRows,
        scratch: &mut [u8],
        rows: &mut LentMut<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let records = Records::of(frame.payload_bytes);
        let mut limit = None;
        let mut filled = 0;
        let mut head = [0; limits::HEADER_BYTES];
        for index in 0..records.count() {
            // The header and the first record mostly come together, and are asked for together.
            let start = if index == 0 { head.len() } else { 0 };
            let end = start + records.on_wire(index).map_or(0, |range| range.len());
            while filled < end {
                let had_head = filled >= start;
                filled += self.receive_some(&mut scratch[filled..end], frame, &mut limit, wait)?;
                if !had_head && filled >= start {
                    head.copy_from_slice(&scratch[..start]);
                    self.take_sealed_header(frame, &head, scratch, filled, wait)?;
                }
            }
            let opened = self.seals.as_mut().map_or(Ok(()), |seals| {
                let record = &mut scratch[start..end];
                seals.opener.read(&head, records, index, record, rows)
            });
            opened.map_err(Trouble::Broken)?;
            filled = 0;
        }
        Ok(())
    }

    fn receive_some(
        &mut self,
        into: &mut [u8],
        frame: ExpectedRows,
        limit: &mut Option<(Deadline, Deadline)>,
        wait: &mut Wait<'_>,
    ) -> Result<usize, Trouble> {
        loop {
            match self.socket.receive(into) {
                Ok(0) => return Err(Trouble::Lost),
                Ok(count) => {
                    if limit.is_none() {
                        self.habits.end(frame.count, wait);
                    }
                    self.figures.bytes_received += count as u64;
                    let whole = limits::payload_limit(frame.payload_bytes);
                    let first = limit.map_or_else(|| Deadline::after(whole), |(whole, _)| whole);
                    *limit = Some((first, Deadline::after(limits::PAYLOAD_STALL_LIMIT)));
                    return Ok(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_more(*limit, wait)?,
                Err(_) => return Err(Trouble::Lost),
            }
        }
    }

    /// Judge a sealed frame's header; a word of the peer that is no rows is opened at once.
    fn take_sealed_header(
        &mut self,
        frame: ExpectedRows,
        head: &Head,
        scratch: &mut [u8],
        filled: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let header = Header::parse(head, &self.rules).map_err(Trouble::Broken)?;
        header.check_payload(0).map_err(Trouble::Broken)?;
        self.conversation
            .receive(&header)
            .map_err(Trouble::Broken)?;
        if header.kind == Kind::Rows {
            self.buffers.fill().map_err(Trouble::Broken)?;
            return frame.check(&header).map_err(Trouble::Broken);
        }
        let records = Records::of(header.payload_bytes);
        let end = head.len() + records.wire_bytes();
        if let Some(rest) = scratch.get_mut(filled..end) {
            self.read_rest(rest, wait)?;
        }
        let wire = scratch.get_mut(head.len()..end).unwrap_or_default();
        let opened = self.seals.as_mut().map_or(Ok(()), |seals| {
            seals.opener.open_message(head, records, wire)
        });
        opened.map_err(Trouble::Broken)?;
        if header.kind == Kind::Fate {
            return Err(Trouble::Fate(
                wire[..header.payload_bytes as usize].to_vec(),
            ));
        }
        Err(Trouble::Bye)
    }
}
