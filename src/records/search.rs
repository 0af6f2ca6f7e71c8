//! The searches that the finders are made of, each by whole blocks of bytes.

use memchr::{memchr, memchr2, memrchr, memrchr2};

pub(crate) const CR: u8 = b'\r';
pub(crate) const LF: u8 = b'\n';

pub(super) fn is_end(byte: u8) -> bool {
    matches!(byte, CR | LF)
}

/// What an event stream has after the last blank line of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    /// Where it starts: just after the first byte of that blank line's end. `None` if there is no
    /// blank line.
    pub(super) start: Option<usize>,
    /// How many CRs and LFs it has.
    pub(super) ends: usize,
    /// Whether a line of it starts with a colon.
    pub(super) has_comments: bool,
}

/// How far apart line ends have to be to be looked for one by one.
const FAR: usize = 64;

/// How many bytes are looked at together where lines are short.
const BLOCK: usize = 128;

/// Looks from the right for a blank line in `data`, which follows the byte `before`.
pub(super) fn tail(before: u8, data: &[u8]) -> Tail {
    let mut tail = Tail::default();
    let mut left = data.len();
    while let Some(end) = memrchr2(CR, LF, &data[..left]) {
        let previous = end.checked_sub(1).map_or(before, |i| data[i]);
        if closes_blank_line(previous, data[end]) {
            tail.start = Some(end + 1);
            tail.has_comments |= data.get(end + 1) == Some(&b':');
            return tail;
        }
        tail.ends += 1;
        tail.has_comments |= data.get(end + 1) == Some(&b':');
        let is_near = left - end < FAR;
        left = end;
        while let Some(block) = data[..left].last_chunk().filter(|_| is_near) {
            let block = Block::of(block);
            if block.has_blank_line || block.ends == 0 {
                break;
            }
            tail.ends += usize::from(block.ends);
            tail.has_comments |= block.has_comments;
            left -= BLOCK;
        }
    }
    tail.has_comments |= is_end(before) && data.first() == Some(&b':');
    tail
}

/// The end of a line right after the end of another: LF LF, CR CR or LF CR. CR LF is one end.
fn closes_blank_line(previous: u8, byte: u8) -> bool {
    is_end(byte) & ((previous == LF) | ((previous == CR) & (byte == CR)))
}

struct Block {
    ends: u8,
    has_blank_line: bool,
    has_comments: bool,
}

impl Block {
    /// Looks at all but the first byte, which is only there for the one that follows it.
    // Without a branch, so that the compiler makes vector instructions of it.
    fn of(bytes: &[u8; BLOCK + 1]) -> Self {
        let (mut ends, mut blank, mut comment) = (0, false, false);
        for (&previous, &byte) in bytes[..BLOCK].iter().zip(&bytes[1..]) {
            ends += u8::from((byte == CR) | (byte == LF));
            blank |= closes_blank_line(previous, byte);
            comment |= ((previous == CR) | (previous == LF)) & (byte == b':');
        }
        Self {
            ends,
            has_blank_line: blank,
            has_comments: comment,
        }
    }
}

/// The first CR or LF.
pub(super) fn line_end(data: &[u8]) -> Option<usize> {
    memchr2(CR, LF, data)
}

/// The first LF.
pub(super) fn line_feed(data: &[u8]) -> Option<usize> {
    memchr(LF, data)
}

/// The last LF.
pub(super) fn last_line_feed(data: &[u8]) -> Option<usize> {
    memrchr(LF, data)
}
