//! How people name a moment: by number, by share of the recording, or by a landmark. Knows no recording: the landmarks
//! are handed in.

use std::fmt;
use std::str::FromStr;

use crate::time::Moment;

/// A moment as it is typed: `@123456789`, `@50%`, `@start`, `@end`, `@exit`, `@signal`; the `@` may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// That many instructions after the start.
    Exactly(Moment),
    /// A share of the recording, in thousandths of a percent (100_000 is the end).
    Share(u32),
    /// Before the first instruction.
    Start,
    /// After the last event of the last task.
    End,
    /// The exit of the recorded command itself.
    Exit,
    /// The first fatal signal.
    Signal,
}

/// Where the landmarks of a recording lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landmarks {
    /// The last moment.
    pub end: Moment,
    /// Where the recorded command (task 0) ended; `None` when its end was not recorded.
    pub exit: Option<Moment>,
    /// Where the first fatal signal struck; `None` when nothing was killed.
    pub signal: Option<Moment>,
}

/// A text that names no moment, or a moment that the recording does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WhenError {
    /// The text is no moment.
    #[error("`{text}` is not a moment: use @123456789, @50%, @start, @end, @exit or @signal")]
    Syntax {
        /// What was typed.
        text: String,
    },
    /// The moment lies past the end.
    #[error("{moment} is out of range: the recording ends at {end}")]
    OutOfRange {
        /// What was asked for.
        moment: Moment,
        /// The last moment there is.
        end: Moment,
    },
    /// `@signal` in a recording in which nothing was killed.
    #[error("there is no @signal: nothing in this recording was killed by a signal")]
    NoSignal,
    /// `@exit` in a recording that was cut off before the command ended.
    #[error("there is no @exit: the recording was cut off before the command ended; use @end")]
    NoExit,
}

impl When {
    /// The moment meant, in a recording with these landmarks.
    pub fn resolve(self, marks: &Landmarks) -> Result<Moment, WhenError> {
        match self {
            Self::Exactly(moment) if moment > marks.end => {
                Err(WhenError::OutOfRange { moment, end: marks.end })
            }
            Self::Exactly(moment) => Ok(moment),
            Self::Share(share) => {
                let scaled = u128::from(marks.end.0) * u128::from(share) / 100_000;
                Ok(Moment(u64::try_from(scaled).unwrap_or(marks.end.0)))
            }
            Self::Start => Ok(Moment(0)),
            Self::End => Ok(marks.end),
            Self::Exit => marks.exit.ok_or(WhenError::NoExit),
            Self::Signal => marks.signal.ok_or(WhenError::NoSignal),
        }
    }
}

/// `"12.5"` as thousandths; `None` unless it is a number from 0 to 100.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3
        || !part.bytes().all(|b| b.is_ascii_digit())
        || !whole.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let part: u32 = format!("{part:0<3}").parse().ok()?;
    let share = whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part)?;
    (share <= 100_000).then_some(share)
}

impl FromStr for When {
    type Err = WhenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || WhenError::Syntax { text: text.to_owned() };
        let bare = text.trim();
        let bare = bare.strip_prefix('@').unwrap_or(bare);
        match bare {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            "exit" => Ok(Self::Exit),
            "signal" => Ok(Self::Signal),
            _ => match bare.strip_suffix('%') {
                Some(share) => thousandths(share).map(Self::Share).ok_or_else(syntax),
                None => bare.parse().map(Self::Exactly).map_err(|_| syntax()),
            },
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(moment) => moment.fmt(f),
            Self::Share(share) if share % 1000 == 0 => write!(f, "@{}%", share / 1000),
            Self::Share(share) => write!(f, "@{}.{:03}%", share / 1000, share % 1000),
            Self::Start => f.write_str("@start"),
            Self::End => f.write_str("@end"),
            Self::Exit => f.write_str("@exit"),
            Self::Signal => f.write_str("@signal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Landmarks = Landmarks { end: Moment(2000), exit: Some(Moment(1500)), signal: None };

    #[track_caller]
    fn check(text: &str, expected: Result<u64, &str>) {
        let got = text.parse::<When>().and_then(|when| when.resolve(&MARKS));
        assert_eq!(got.map(|m| m.0).map_err(|e| e.to_string()), expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn moments_resolve_as_people_type_them() {
        check("@17", Ok(17));
        check("1,000", Ok(1000));
        check("@2000", Ok(2000));
        check("@2001", Err("@2001 is out of range: the recording ends at @2000"));
        check("@50%", Ok(1000));
        check("12.5%", Ok(250));
        check("@100%", Ok(2000));
        check("@start", Ok(0));
        check("@end", Ok(2000));
        check("@exit", Ok(1500));
        check("@signal", Err("there is no @signal: nothing in this recording was killed by a signal"));
        for bad in ["@", "", "@x", "@-1", "@101%", "@1.2345%", "@%", "@1e3"] {
            check(
                bad,
                Err(&format!(
                    "`{bad}` is not a moment: use @123456789, @50%, @start, @end, @exit or @signal"
                )),
            );
        }
    }

    #[test]
    fn what_is_shown_parses_back() {
        for when in
            [When::Exactly(Moment(5)), When::Share(50_000), When::Share(12_345), When::Exit, When::Start]
        {
            assert_eq!(when.to_string().parse(), Ok(when));
        }
    }
}
