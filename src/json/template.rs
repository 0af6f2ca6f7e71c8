use super::settings::escape;

/// The numbers that a text about a cut document may have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) kept: u64,
    pub(super) total: u64,
    pub(super) next_offset: u64,
}

/// A text with places for numbers, as the inside of a JSON string.
#[derive(Clone, Debug)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Box<str>),
    Number(Number),
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Kept,
    Total,
    Dropped,
    NextOffset,
}

const NUMBERS: [(&str, Number); 4] = [
    ("{kept}", Number::Kept),
    ("{total}", Number::Total),
    ("{dropped}", Number::Dropped),
    ("{next_offset}", Number::NextOffset),
];

impl Template {
    pub(super) fn new(template: &str) -> Self {
        let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), template);
        while let Some(char) = rest.chars().next() {
            let named = NUMBERS.iter().find(|(name, _)| rest.starts_with(name));
            let Some((name, number)) = named else {
                escape(char.encode_utf8(&mut [0; 4]), &mut text);
                rest = &rest[char.len_utf8()..];
                continue;
            };
            parts.push(Part::Text(std::mem::take(&mut text).into()));
            parts.push(Part::Number(*number));
            rest = &rest[name.len()..];
        }
        parts.push(Part::Text(text.into()));
        Self { parts }
    }

    pub(super) fn write(&self, numbers: Numbers, to: &mut String) {
        for part in &self.parts {
            match part {
                Part::Text(text) => to.push_str(text),
                Part::Number(number) => to.push_str(&number.of(numbers).to_string()),
            }
        }
    }
}

impl Number {
    fn of(self, numbers: Numbers) -> u64 {
        match self {
            Self::Kept => numbers.kept,
            Self::Total => numbers.total,
            Self::Dropped => numbers.total.saturating_sub(numbers.kept),
            Self::NextOffset => numbers.next_offset,
        }
    }
}
