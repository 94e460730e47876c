//! How numbers, times, sizes, bytes and ends are shown.

use std::time::Duration;

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes with a binary unit, three digits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A length of time, as people say it.
pub(crate) fn duration(length: Duration) -> String {
    let secs = length.as_secs();
    match secs {
        0 if length.as_millis() == 0 => format!("{} us", length.as_micros()),
        0 => format!("{} ms", length.as_millis()),
        1..60 => format!("{:.1} s", length.as_secs_f64()),
        60..3600 => format!("{} min {} s", secs / 60, secs % 60),
        _ => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
    }
}

/// Seconds since 1970 as `2024-02-29 12:34:56 UTC` (Howard Hinnant's `civil_from_days`).
pub(crate) fn date(epoch: u64) -> String {
    let (days, secs) = (epoch / 86_400 + 719_468, epoch % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", secs / 3600, secs / 60 % 60, secs % 60)
}

/// Why a recording has no end.
pub(crate) fn incomplete(trace: &trace::Trace) -> String {
    match trace.stopped() {
        None => "its recorder was killed, or its files were cut short".to_owned(),
        Some(why) if why.is_empty() => "its recorder stopped, with no room left to say why".to_owned(),
        Some(why) => format!("its recorder stopped: {why}"),
    }
}

/// A command line as one could type it into a shell, on one line.
pub(crate) fn command_line(argv: &[Vec<u8>]) -> String {
    argv.iter().map(|arg| quoted(&String::from_utf8_lossy(arg))).collect::<Vec<_>>().join(" ")
}

/// One word, quoted where a shell needs it. With control characters it is quoted in the way of `$'two\nlines'`.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./=:,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else if word.chars().any(char::is_control) {
        format!("$'{}'", word.chars().map(escaped).collect::<String>())
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A character inside `$'..'`.
fn escaped(c: char) -> String {
    match c {
        '\n' => r"\n".to_owned(),
        '\t' => r"\t".to_owned(),
        '\r' => r"\r".to_owned(),
        '\\' | '\'' => format!("\\{c}"),
        c if c.is_control() => format!(r"\u{:04x}", u32::from(c)),
        c => c.to_string(),
    }
}

/// At most `width` characters of a line; where some are left out, it ends in `..`.
pub(crate) fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let shown: String = line.chars().take(width.saturating_sub(2)).collect();
    format!("{shown}..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown = [0, 12, 123, 1234, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "12", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn sizes_and_lengths_have_units() {
        assert_eq!(
            [0, 1023, 1024, 1536, 5 << 30].map(size),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB"]
        );
        let shown =
            [5, 7_000, 2_500_000, 61_000_000, 7_260_000_000].map(|us| duration(Duration::from_micros(us)));
        assert_eq!(shown, ["5 us", "7 ms", "2.5 s", "1 min 1 s", "2 h 1 min"]);
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_709_210_096), "2024-02-29 12:34:56 UTC");
        assert_eq!(date(4_102_444_799), "2099-12-31 23:59:59 UTC");
    }

    #[test]
    fn command_lines_can_be_typed_again() {
        let argv = ["sh", "-c", "echo 'a b'", ""].map(|arg| arg.as_bytes().to_vec());
        assert_eq!(command_line(&argv), r"sh -c 'echo '\''a b'\''' ''");
    }

    #[test]
    fn words_with_several_lines_stay_on_one() {
        assert_eq!(quoted("a\nb\t'c\\"), r"$'a\nb\t\'c\\'");
        assert_eq!(quoted("\u{1b}[31m"), r"$'\u001b[31m'");
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!([5, 4, 2].map(|width| cut("ab cd", width)), ["ab cd", "ab..", ".."]);
    }
}
