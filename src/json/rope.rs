use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memrchr;

/// How many bytes a block has.
const BLOCK: usize = 16 * 1024;
/// How many a text has that may stay small.
const SMALL: usize = 256;

/// Text in blocks of the same size, so that it grows without being moved and shrinks at its end.
#[derive(Debug, Default)]
pub(super) struct Rope {
    // All of them are full, the last one aside.
    blocks: Vec<BytesMut>,
    len: usize,
}

impl Rope {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let used = self.len % BLOCK;
            let (now, later) = text.split_at(text.len().min(BLOCK - used));
            match self.blocks.last_mut().filter(|_| used > 0) {
                None if self.len > 0 => self.blocks.push(BytesMut::with_capacity(BLOCK)),
                None => self
                    .blocks
                    .push(BytesMut::with_capacity(small_or_whole(now.len()))),
                Some(block) if block.capacity() - used < now.len() => {
                    block.reserve(small_or_whole(used + now.len()) - used);
                }
                Some(_) => {}
            }
            if let Some(block) = self.blocks.last_mut() {
                block.extend_from_slice(now);
            }
            self.len += now.len();
            text = later;
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.blocks.truncate(len.div_ceil(BLOCK));
        let used = len - len.saturating_sub(1) / BLOCK * BLOCK;
        if let Some(last) = self.blocks.last_mut() {
            last.truncate(used);
        }
        self.len = len;
    }

    /// Moves all of `other` to the end of this one. Each of its blocks is freed as soon as it is
    /// copied.
    pub(super) fn append(&mut self, other: Self) {
        for block in other.blocks {
            self.push(&block);
        }
    }

    /// All but some ranges of it, which are in order. Each block is freed as soon as it is copied.
    pub(super) fn without(self, cuts: &[Range<usize>]) -> Self {
        let (mut rest, mut cuts, mut start) = (Self::default(), cuts.iter().peekable(), 0);
        for block in self.blocks {
            let (mut at, end) = (start, start + block.len());
            while let Some(cut) = cuts.peek().filter(|cut| cut.start < end) {
                rest.push(&block[at - start..cut.start.max(at) - start]);
                at = cut.end.min(end);
                if cut.end > end {
                    break;
                }
                cuts.next();
            }
            rest.push(&block[at - start..]);
            start = end;
        }
        rest
    }

    /// Takes out everything from `at` on.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::default();
        for index in at / BLOCK..self.blocks.len() {
            let block = std::mem::take(&mut self.blocks[index]);
            let kept = at.saturating_sub(index * BLOCK).min(block.len());
            rest.push(&block[kept..]);
            // Of the blocks from here on only this one is kept, in part.
            if kept > 0 {
                self.blocks[index] = block;
            }
        }
        self.truncate(at);
        rest
    }

    /// The text before `end` that is in one piece with it.
    fn piece_before(&self, end: usize) -> &[u8] {
        let Some(last) = end.checked_sub(1) else {
            return &[];
        };
        let start = last / BLOCK * BLOCK;
        self.blocks
            .get(last / BLOCK)
            .and_then(|block| block.get(..end - start))
            .unwrap_or_default()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.blocks.get(at / BLOCK)?.get(at % BLOCK).copied()
    }

    /// The last comma of a list of values, in a text that is valid JSON without whitespace.
    pub(super) fn last_comma(&self) -> Option<usize> {
        let (mut end, mut depth) = (self.len, 0_usize);
        while let Some((&byte, _)) = self.piece_before(end).split_last() {
            end -= 1;
            match byte {
                b'"' => end = self.opening_quote(end)?,
                b']' | b'}' => depth += 1,
                b'[' | b'{' => depth = depth.checked_sub(1)?,
                b',' if depth == 0 => return Some(end),
                _ => {}
            }
        }
        None
    }

    /// The quote that opens the string whose closing quote is at `end`.
    ///
    /// In a string a quote has an odd number of backslashes before it, and outside there are none.
    fn opening_quote(&self, mut end: usize) -> Option<usize> {
        while end > 0 {
            let piece = self.piece_before(end);
            let Some(found) = memrchr(b'"', piece) else {
                end -= piece.len();
                continue;
            };
            let quote = end - piece.len() + found;
            end = self.before_backslashes(quote);
            if (quote - end) % 2 == 0 {
                return Some(quote);
            }
        }
        None
    }

    /// The start of the backslashes that end at `end`.
    fn before_backslashes(&self, mut end: usize) -> usize {
        while end > 0 && self.byte(end - 1) == Some(b'\\') {
            end -= 1;
        }
        end
    }

    /// The last place at or before `end`, in the inside of a JSON string, that cuts no character, no
    /// escape and no pair of surrogates.
    pub(super) fn floor_boundary(&self, end: usize) -> usize {
        /// A pair of surrogates is written in so many bytes, and is the longest character.
        const LONGEST: usize = 12;
        // A character that begins before this is over by `end`, and what looks like one in between
        // its bytes does not reach there either.
        let mut start = end.saturating_sub(2 * LONGEST);
        start = self.before_backslashes(start);
        loop {
            let next = self.after_char(start);
            if next > end || next > self.len || next == start {
                return start;
            }
            start = next;
        }
    }

    /// The end of the character at `at`, as it is written. What is no character is one byte.
    fn after_char(&self, at: usize) -> usize {
        match self.byte(at) {
            None => at,
            Some(b'\\') => match self.unit(at) {
                Some(0xD800..0xDC00) => match self.unit(at + 6) {
                    Some(0xDC00..0xE000) => at + 12,
                    _ => at + 6,
                },
                Some(_) => at + 6,
                None if self.byte(at + 1) == Some(b'u') => at + 6,
                None => at + 2,
            },
            Some(lead) => {
                let len = match lead {
                    0xF0..=0xF7 => 4,
                    0xE0..=0xEF => 3,
                    0xC0..=0xDF => 2,
                    _ => 1,
                };
                at + len
            }
        }
    }

    /// The UTF-16 code unit that an escape at `at` stands for.
    fn unit(&self, at: usize) -> Option<u16> {
        if (self.byte(at)?, self.byte(at + 1)?) != (b'\\', b'u') {
            return None;
        }
        (at + 2..at + 6).try_fold(0, |unit, at| {
            let digit = char::from(self.byte(at)?).to_digit(16)?;
            Some(unit << 4 | digit as u16)
        })
    }

    pub(super) fn into_blocks(self) -> impl Iterator<Item = Bytes> {
        self.blocks.into_iter().map(BytesMut::freeze)
    }
}

fn small_or_whole(len: usize) -> usize {
    if len <= SMALL { SMALL } else { BLOCK }
}

/// Whether text that comes in blocks is UTF-8 without control characters.
pub(super) fn is_clean<'a>(blocks: impl IntoIterator<Item = &'a Bytes>) -> bool {
    // The start of a character whose end is in the next block.
    let mut cut: Vec<u8> = Vec::new();
    for block in blocks {
        if block
            .iter()
            .fold(false, |found, &byte| found | (byte < 0x20))
        {
            return false;
        }
        let mut rest = &block[..];
        while !cut.is_empty() && !rest.is_empty() {
            cut.push(rest[0]);
            rest = &rest[1..];
            match std::str::from_utf8(&cut) {
                Ok(_) => cut.clear(),
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        if let Err(error) = std::str::from_utf8(rest) {
            if error.error_len().is_some() {
                return false;
            }
            cut.extend_from_slice(&rest[error.valid_up_to()..]);
        }
    }
    cut.is_empty()
}
