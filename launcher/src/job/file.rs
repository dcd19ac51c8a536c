//! Reads a job file (TOML). Every error says the line and the column and shows the line.
//!
//! A key is the long name of its flag: at the top, in `[output]` or in `[ending]`; [`KEYS`] is the list.
//! A value is read by the flag's own code: `timeout = "2m"` as `--timeout 2m`, `tee = true` as `--tee`.
//! Relative paths count from prun's working directory, as on the command line, and not from where the
//! file lies.

use std::ffi::OsString;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Part;
use super::merge::Request;
use super::template::Template;
use super::value::{Assignment, RankCount, RankList, Scalar};
use crate::cli::Options;
use crate::refused::Refused;

/// A flag's long name and the key of a job file that means the same. `program` and `[[program]]` stand for what
/// follows the flags.
pub const KEYS: &[(&str, &str)] = &[
    ("np", "ranks"),
    ("dry-run", "dry-run"),
    ("verbose", "verbose"),
    ("quiet", "quiet"),
    ("env", "env"),
    ("env-file", "env-file"),
    ("env-clear", "env-clear"),
    ("wdir", "wdir"),
    ("label", "output.label"),
    ("output-dir", "output.dir"),
    ("tee", "output.tee"),
    ("merge-stderr", "output.merge-stderr"),
    ("ranks", "output.ranks"),
    ("pty", "output.pty"),
    ("stdin", "stdin"),
    ("timeout", "ending.timeout"),
    ("grace", "ending.grace"),
    ("kill-on-fail", "ending.kill-on-fail"),
    ("keep-going", "ending.keep-going"),
    ("signal", "ending.signal"),
    ("max-restarts", "ending.max-restarts"),
    ("stall-timeout", "ending.stall-timeout"),
    ("bind", "bind"),
    ("map-by", "placement.map-by"),
    ("rank-by", "placement.rank-by"),
    ("gpus", "placement.gpus"),
    ("gpu-mask", "placement.gpu-mask"),
    ("share-gpus", "placement.share-gpus"),
    ("cpus-per-rank", "placement.cpus-per-rank"),
    ("watch", "placement.watch"),
    ("on-fault", "placement.on-fault"),
    ("verify", "verify"),
    ("json", "json"),
];

/// Keys that no flag has: `-x NAME` without a value, and the programs themselves.
pub const FILE_ONLY_KEYS: &[&str] = &["program", "pass-env"];

/// Keys of each `[[program]]`.
const PROGRAM_KEYS: &[&str] = &["argv", "ranks", "wdir", "env", "pass-env"];

/// Reads the file at `path`.
pub fn read(path: &Path) -> Result<Request, Refused> {
    let bytes = std::fs::read(path).map_err(|error| {
        Refused::new(format!("cannot read the job file {}", path.display()))
            .because(error)
            .try_instead("`prun run JOB.toml` takes the path of a file; `prun -n N PROGRAM` starts a program")
    })?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text).map_err(|error| error.in_file(path, &text)),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes());
            Err(FileError { message: "this is not UTF-8 text".into(), at: good..good, try_: None }.in_file(path, &text))
        }
    }
}

/// What is wrong in a job file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    message: String,
    at: Range<usize>,
    try_: Option<String>,
}

impl FileError {
    fn new(message: impl Into<String>, at: Range<usize>) -> FileError {
        FileError { message: message.into(), at, try_: None }
    }

    /// Line and column of the place, both counted from 1; columns are characters.
    pub fn position(&self, text: &str) -> (usize, usize) {
        let mut start = self.at.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    pub(crate) fn in_file(self, path: &Path, text: &str) -> Refused {
        let (line, column) = self.position(text);
        let shown = text.split('\n').nth(line - 1).unwrap_or("").trim_end_matches('\r').replace('\t', " ");
        let room = shown.chars().count().saturating_sub(column - 1).max(1);
        let marked =
            text.get(self.at.clone()).map_or(1, |part| part.chars().take_while(|&c| c != '\n').count()).clamp(1, room);
        let number = line.to_string();
        let message = format!(
            "{}, line {line}, column {column}: {}\n  {number} | {shown}\n  {:width$} | {:indent$}{}",
            path.display(),
            self.message,
            "",
            "",
            "^".repeat(marked),
            width = number.len(),
            indent = column - 1,
        );
        Refused { message, cause: None, try_: self.try_ }
    }
}

impl From<toml::de::Error> for FileError {
    fn from(error: toml::de::Error) -> FileError {
        // The parser says "expected" and "found" on lines of their own; here they follow the place in one sentence.
        FileError::new(error.message().trim().replace('\n', "; "), error.span().unwrap_or(0..0))
    }
}

/// Reads the text of a job file.
pub fn parse(text: &str) -> Result<Request, FileError> {
    let mut document = DeTable::parse(text)?;
    let table = document.get_mut();
    check_keys(table)?;
    let parts = match table.remove("program") {
        Some(program) => programs(program)?,
        None => Vec::new(),
    };
    let ranks_at = key_span(table, "ranks");
    let mut options = Options::deserialize(toml::de::Deserializer::from(document))?;
    options.env.extend(options.pass_env.drain(..).map(|name| Assignment { name: name.into(), value: None }));
    if let (Some(at), Some(_), true) = (ranks_at, options.np, parts.len() > 1) {
        return Err(FileError::new("`ranks` does not say which of the programs it means", at));
    }
    Ok(Request { options, parts })
}

/// `program = ["./a", "x"]`, or `[[program]]` tables.
fn programs(value: Spanned<DeValue<'_>>) -> Result<Vec<Part>, FileError> {
    let at = value.span();
    let wanted = || {
        let mut error = FileError::new("`program` is a list: the program, then each argument", at.clone());
        error.try_ = Some(r#"program = ["./train", "--lr", "0.1"], or a table [[program]] for each of several"#.into());
        error
    };
    let DeValue::Array(items) = value.into_inner() else { return Err(wanted()) };
    let tables = items.iter().filter(|item| matches!(item.get_ref(), DeValue::Table(_))).count();
    if items.is_empty() || (tables != 0 && tables != items.len()) {
        return Err(wanted());
    }
    if tables == 0 {
        let argv = items.iter().map(argument).collect::<Result<_, _>>()?;
        return Ok(vec![Part { argv, ..Part::default() }]);
    }
    items.into_iter().map(program_table).collect()
}

fn argument(item: &Spanned<DeValue<'_>>) -> Result<OsString, FileError> {
    match item.get_ref() {
        DeValue::String(text) => Ok(OsString::from(text.as_ref())),
        _ => Err(FileError::new("an argument is a text: put it in quotes", item.span())),
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ProgramTable {
    argv: Vec<String>,
    #[serde(default, deserialize_with = "scalar")]
    ranks: Option<RankCount>,
    #[serde(default, deserialize_with = "scalar")]
    wdir: Option<Template>,
    #[serde(default, deserialize_with = "variables")]
    env: Vec<Assignment>,
    #[serde(default)]
    pass_env: Vec<String>,
}

fn program_table(item: Spanned<DeValue<'_>>) -> Result<Part, FileError> {
    let at = item.span();
    let program = ProgramTable::deserialize(toml::de::ValueDeserializer::from(item)).map_err(|error| {
        let error = FileError::from(error);
        if error.at == (0..0) { FileError { at: at.clone(), ..error } } else { error }
    })?;
    if program.argv.is_empty() {
        return Err(FileError::new("`argv` is empty: it holds the program, then each argument", at));
    }
    let passed = program.pass_env.into_iter().map(|name| Assignment { name: name.into(), value: None });
    Ok(Part {
        ranks: program.ranks,
        argv: program.argv.into_iter().map(OsString::from).collect(),
        env: program.env.into_iter().chain(passed).collect(),
        wdir: program.wdir,
    })
}

/// Refuses a key that does not exist and says which one comes closest.
fn check_keys(table: &DeTable<'_>) -> Result<(), FileError> {
    let mut known: Vec<&str> = KEYS.iter().map(|(_, key)| *key).chain(FILE_ONLY_KEYS.iter().copied()).collect();
    known.extend(["output", "ending", "placement"]);
    for (key, value) in table.iter() {
        let name = key.get_ref().as_ref();
        check_key(name, key.span(), &known)?;
        match value.get_ref() {
            DeValue::Table(inner) if matches!(name, "output" | "ending" | "placement") => {
                for (key, _) in inner.iter() {
                    check_key(&format!("{name}.{}", key.get_ref()), key.span(), &known)?;
                }
            }
            // A date would pass as a table of its own kind.
            other if name == "env" && !matches!(other, DeValue::Table(_)) => {
                return Err(FileError::new(
                    "`env` is a table: [env], then NAME = \"value\" in each line",
                    value.span(),
                ));
            }
            DeValue::Array(items) if name == "program" => {
                for item in items.iter() {
                    let DeValue::Table(program) = item.get_ref() else { continue };
                    for (key, _) in program.iter() {
                        check_key(key.get_ref(), key.span(), PROGRAM_KEYS)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_key(name: &str, at: Range<usize>, known: &[&str]) -> Result<(), FileError> {
    if known.contains(&name) {
        return Ok(());
    }
    let mut error = FileError::new(format!("there is no key `{name}`"), at);
    error.try_ = Some(match suggestion(name, known) {
        Some(near) => match near.split_once('.') {
            Some((table, key)) => format!("`{key}` in the table [{table}]"),
            None => format!("`{near}`"),
        },
        None => "`prun man` lists the keys".into(),
    });
    Err(error)
}

/// The known key that is the same but for its table or its flag's spelling, or that few typing errors lead to.
fn suggestion<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let plain = name.replace('_', "-");
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let by_flag = KEYS.iter().find(|(flag, key)| *flag == last(&plain) && known.contains(key)).map(|(_, key)| *key);
    let same = known.iter().copied().find(|key| last(key) == last(&plain));
    let table = |key: &str| key.split_once('.').map(|(table, _)| table.to_owned());
    let close = || {
        let likeness = |key: &&str| (edit_distance(&last(key), &last(&plain)), table(key) != table(name));
        known.iter().copied().min_by_key(likeness).filter(|key| likeness(key).0 <= 1 + last(key).len() / 4)
    };
    by_flag.or(same).or_else(close).and_then(|found| known.iter().copied().find(|key| *key == found))
}

/// How many characters must be changed, added, dropped or swapped with their neighbour.
pub(crate) fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

fn key_span(table: &DeTable<'_>, name: &str) -> Option<Range<usize>> {
    table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(key, _)| key.span())
}

/// Text, a number or a switch, read as the flag's argument would be.
pub(crate) fn scalar<'de, D: Deserializer<'de>, T: Scalar>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Text<T>(PhantomData<T>);

    impl<T: Scalar> Visitor<'_> for Text<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text, a number, true or false")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
            text.parse().map(Some).map_err(E::custom)
        }

        fn visit_bool<E: de::Error>(self, switch: bool) -> Result<Option<T>, E> {
            self.visit_str(if switch { T::TRUE } else { T::FALSE })
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Option<T>, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(Text(PhantomData))
}

/// `"0,2-3"`, a number, or a list of numbers.
pub(crate) fn ranks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RankList>, D::Error> {
    struct Ranks;

    impl<'de> Visitor<'de> for Ranks {
        type Value = Option<RankList>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ranks, such as \"0,2-3\" or [0, 2, 3]")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<RankList>, E> {
            text.parse().map(Some).map_err(E::custom)
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<RankList>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<RankList>, A::Error> {
            let mut numbers = Vec::new();
            while let Some(number) = items.next_element::<u32>()? {
                numbers.push(number.to_string());
            }
            self.visit_str(&numbers.join(","))
        }
    }

    deserializer.deserialize_any(Ranks)
}

/// One path, or a list of them.
pub(crate) fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    struct Paths;

    impl<'de> Visitor<'de> for Paths {
        type Value = Vec<PathBuf>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a path or a list of paths")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<PathBuf>, E> {
            Ok(vec![PathBuf::from(text)])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<PathBuf>, A::Error> {
            let mut paths = Vec::new();
            while let Some(path) = items.next_element()? {
                paths.push(path);
            }
            Ok(paths)
        }
    }

    deserializer.deserialize_any(Paths)
}

/// The table `[env]`: texts and whole numbers.
pub(crate) fn variables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Assignment>, D::Error> {
    struct Value(String);

    impl<'de> Deserialize<'de> for Value {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
            struct Text;

            impl Visitor<'_> for Text {
                type Value = Value;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a text or a whole number; put anything else in quotes")
                }

                fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                    Ok(Value(text.to_owned()))
                }

                fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
                    Ok(Value(number.to_string()))
                }
            }

            deserializer.deserialize_any(Text)
        }
    }

    struct Table;

    impl<'de> Visitor<'de> for Table {
        type Value = Vec<Assignment>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of variables, such as [env] with NAME = \"value\"")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut entries: A) -> Result<Vec<Assignment>, A::Error> {
            let mut variables = Vec::new();
            while let Some((name, Value(value))) = entries.next_entry::<String, Value>()? {
                variables.push(Assignment { name: name.into(), value: Some(value.into()) });
            }
            Ok(variables)
        }
    }

    deserializer.deserialize_map(Table)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::value::{Limit, YesNo};
    use super::super::{Bind, PtyRanks, StdinTo};
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text).in_file(Path::new("job.toml"), text).to_string()
    }

    #[test]
    fn a_small_file_says_what_flags_would() {
        let request = parse(
            r#"
            ranks = 4
            program = ["./train", "--lr", "0.1"]
            stdin = "none"
            bind = "core"
            pass-env = ["HOME"]
            [env]
            OMP_NUM_THREADS = 2
            [output]
            label = true
            pty = 1
            ranks = [0, 2, 3]
            [ending]
            timeout = 90
            keep-going = true
            "#,
        )
        .unwrap();
        let options = request.options;
        assert_eq!(options.np, Some(RankCount(4)));
        assert_eq!(options.stdin, Some(StdinTo::None));
        assert_eq!(options.bind, Some(Bind::Core));
        assert_eq!(options.output.label, Some("[{rank}] ".parse().unwrap()));
        assert_eq!(options.output.pty, Some(PtyRanks::One(1)));
        assert_eq!(options.output.ranks, Some(RankList(vec![0, 2, 3])));
        assert_eq!(options.ending.timeout, Some(Limit(Some(Duration::from_secs(90)))));
        assert_eq!(options.ending.keep_going, Some(YesNo(true)));
        assert_eq!(
            options.env,
            [
                Assignment { name: "OMP_NUM_THREADS".into(), value: Some("2".into()) },
                Assignment { name: "HOME".into(), value: None },
            ]
        );
        assert_eq!(request.parts[0].argv, ["./train", "--lr", "0.1"]);
    }

    #[test]
    fn tables_make_several_programs() {
        let request = parse(
            "[[program]]\nranks = 1\nargv = ['a']\nenv = {X = '{rank}'}\n[[program]]\nranks = 2\nargv = ['b', 'c']\n",
        )
        .unwrap();
        assert_eq!(request.parts.len(), 2);
        assert_eq!(request.parts[1].argv, ["b", "c"]);
        assert_eq!(request.parts[0].env.len(), 1);
    }

    #[test]
    fn every_key_is_read_and_every_key_that_is_read_is_listed() {
        for (_, key) in KEYS {
            let (table, name) = key.split_once('.').map_or(("", *key), |(table, name)| (table, name));
            // A value of a kind that no key takes: an error about the value, not about the key.
            let text = if table.is_empty() {
                format!("{name} = 1979-05-27")
            } else {
                format!("[{table}]\n{name} = 1979-05-27")
            };
            let message = parse(&text).expect_err(key).message;
            assert!(!message.contains("unknown field") && !message.contains("no key"), "{key}: {message}");
        }
        // serde lists the fields that it knows; each must be a known key.
        for (prefix, message) in [
            (
                "",
                <Options as Deserialize>::deserialize(toml::de::Deserializer::parse("no = 1").unwrap())
                    .unwrap_err()
                    .to_string(),
            ),
            (
                "output.",
                Options::deserialize(toml::de::Deserializer::parse("[output]\nno = 1").unwrap())
                    .unwrap_err()
                    .to_string(),
            ),
            (
                "ending.",
                Options::deserialize(toml::de::Deserializer::parse("[ending]\nno = 1").unwrap())
                    .unwrap_err()
                    .to_string(),
            ),
            (
                "placement.",
                Options::deserialize(toml::de::Deserializer::parse("[placement]\nno = 1").unwrap())
                    .unwrap_err()
                    .to_string(),
            ),
        ] {
            let fields: Vec<&str> = message
                .split("expected one of")
                .nth(1)
                .expect("serde lists them")
                .split('`')
                .skip(1)
                .step_by(2)
                .collect();
            assert!(fields.len() > 4, "{message}");
            for field in fields {
                let key = format!("{prefix}{field}");
                let listed = KEYS.iter().any(|(_, known)| *known == key) || FILE_ONLY_KEYS.contains(&key.as_str());
                assert!(listed || matches!(field, "output" | "ending" | "placement"), "{key} is read but not in KEYS");
            }
        }
    }

    #[test]
    fn errors_show_the_place() {
        assert_eq!(
            refusal("ranks = 4\nrank = 5\n"),
            "error: job.toml, line 2, column 1: there is no key `rank`\n  2 | rank = 5\n    | ^^^^\n  try: `ranks`"
        );
        assert_eq!(
            refusal("[ending]\ntimeout = \"soon\"\n"),
            "error: job.toml, line 2, column 11: `soon` is not a length of time, such as 10 (seconds), 500ms, 1.5h or 2m 30s\n  \
             2 | timeout = \"soon\"\n    |           ^^^^^^"
        );
        let table = [
            ("ranks = 0", "line 1, column 9: a job needs at least 1 rank"),
            ("ranks = -1", "line 1, column 9: `-1` is not a number of ranks"),
            ("timeout = 4", "`timeout` in the table [ending]"),
            ("[output]\noutput-dir = 'x'", "`dir` in the table [output]"),
            ("[output]\ntimeuot = 4", "`timeout` in the table [ending]"),
            ("label = true", "`label` in the table [output]"),
            ("np = 4", "`ranks`"),
            ("env_clear = true", "`env-clear`"),
            ("[[program]]\nargs = ['a']", "`argv`"),
            ("program = 'a b'", "line 1, column 11: `program` is a list"),
            ("program = ['a', 1]", "line 1, column 17: an argument is a text"),
            ("program = []", "`program` is a list"),
            ("[[program]]\nranks = 1", "missing field `argv`"),
            ("[[program]]\nargv = []", "`argv` is empty"),
            ("ranks = 2\n[[program]]\nargv=['a']\n[[program]]\nargv=['b']", "does not say which of the programs"),
            ("[env]\nA = 1.5", "line 2, column 5: invalid type"),
            ("ranks = ", "line 1, column 9"),
            ("ranks = 1\nranks = 2", "line 2, column 1: duplicate key"),
            ("é = 'ü'\t!", "column 9"),
        ];
        for (text, part) in table {
            let shown = refusal(text);
            assert!(shown.contains(part), "{text:?} gave\n{shown}");
        }
    }

    #[test]
    fn the_example_file_is_read() {
        let request = parse(include_str!("../../../configs/hello.toml")).unwrap();
        assert_eq!(request.parts.len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_a_job_or_an_error_with_a_place(text in "(ranks|program|\\[\\[program\\]\\]|\\[output\\]|[=\\[\\]{}'\"0-9a-z.\\-\n é#])*") {
            if let Err(error) = parse(&text) {
                let (line, column) = error.position(&text);
                prop_assert!(line >= 1 && column >= 1 && line <= text.split('\n').count());
                let _ = error.in_file(Path::new("job.toml"), &text);
            }
        }

        #[test]
        fn any_value_of_any_key_is_taken_or_refused(key in prop::sample::select(KEYS), value in "('[^']*'|\\[.*\\]|-?[0-9.]{1,30}|true|false|\\{.*\\})") {
            let (table, name) = key.1.split_once('.').unwrap_or(("", key.1));
            let text = if table.is_empty() { format!("{name} = {value}") } else { format!("[{table}]\n{name} = {value}") };
            if let Err(error) = parse(&text) {
                let _ = error.in_file(Path::new("job.toml"), &text);
            }
        }
    }
}
