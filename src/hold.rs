use std::{collections::VecDeque, mem};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// How many bytes of small frames are copied together. Kept one by one, their bookkeeping would
/// outweigh their data.
const BLOCK: usize = 16 * 1024;

/// Frames that were read and not yet passed on, in little more memory than their data takes.
#[derive(Debug, Default)]
pub(crate) struct Held {
    blocks: VecDeque<Bytes>,
    tail: BytesMut,
    trailers: Option<HeaderMap>,
    bytes: u64,
}

impl Held {
    pub(crate) fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                self.bytes += data.len() as u64;
                self.push_data(data);
            }
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
    }

    fn push_data(&mut self, data: Bytes) {
        if data.len() >= BLOCK / 2 {
            self.close_tail();
            return self.blocks.push_back(data);
        }
        let room = self.tail.capacity() - self.tail.len();
        let (fits, more) = data.split_at(room.min(data.len()));
        self.tail.extend_from_slice(fits);
        if !more.is_empty() {
            self.close_tail();
            self.tail.reserve(BLOCK);
            self.tail.extend_from_slice(more);
        }
    }

    fn close_tail(&mut self) {
        let tail = mem::take(&mut self.tail);
        if tail.is_empty() {
            return;
        }
        // A block that is mostly air is not worth keeping.
        let mostly_air = tail.len() < BLOCK / 2;
        self.blocks.push_back(if mostly_air {
            Bytes::copy_from_slice(&tail)
        } else {
            tail.freeze()
        });
    }

    pub(crate) fn pop(&mut self) -> Option<Frame<Bytes>> {
        if self.blocks.is_empty() {
            self.close_tail();
        }
        if let Some(data) = self.blocks.pop_front() {
            self.bytes -= data.len() as u64;
            return Some(Frame::data(data));
        }
        self.trailers.take().map(Frame::trailers)
    }

    /// Takes all that `other` holds, after what is held already.
    #[cfg(feature = "records")]
    pub(crate) fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            return mem::swap(self, other);
        }
        self.close_tail();
        other.close_tail();
        self.blocks.append(&mut other.blocks);
        self.trailers = other.trailers.take();
        self.bytes += mem::take(&mut other.bytes);
    }

    /// How many bytes of data are held.
    #[cfg(any(feature = "json", feature = "records"))]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.trailers.is_none()
    }

    /// Exact unless trailers follow: a server that announces a length has no place for them.
    pub(crate) fn size_hint(&self) -> SizeHint {
        if self.trailers.is_none() {
            return SizeHint::with_exact(self.bytes);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(self.bytes);
        hint
    }
}
