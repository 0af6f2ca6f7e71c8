//! Choices made by the bytes of a fuzzer.

use bytes::Bytes;

use crate::support::Step;

/// Choices, taken off the front. Once there is nothing left, all of them are the first one.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    pub fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    pub fn number(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()].clone()
    }

    /// Up to `most` numbers.
    pub fn numbers(&mut self, most: u8) -> Vec<usize> {
        let count = self.byte() % (most + 1);
        (0..count).map(|_| self.number()).collect()
    }

    pub fn limit(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => self.number() as u64,
            limit => u64::from(limit),
        }
    }

    /// What a body does, by all that is left, in at most `most` steps. No byte of data is like the
    /// one before it.
    pub fn steps(&mut self, most: usize) -> Vec<Step> {
        let (mut steps, mut next) = (Vec::new(), 0_u8);
        while !self.0.is_empty() && steps.len() < most {
            steps.push(match self.byte() {
                0 => Step::Pending,
                1 => Step::Fail,
                2 => Step::Trailers,
                len => {
                    let data = (3..len).map(|_| {
                        next = next.wrapping_add(1);
                        next
                    });
                    Step::Data(Bytes::from_iter(data))
                }
            });
            if matches!(steps.last(), Some(Step::Fail)) {
                break;
            }
        }
        steps
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
