//! Smaller numbers for Miri, which is some thousand times slower.

#![allow(dead_code, missing_docs, unreachable_pub)]

/// What a test usually takes, and what it takes under Miri.
pub const fn usually<T: Copy>(usual: T, under_miri: T) -> T {
    if cfg!(miri) { under_miri } else { usual }
}
