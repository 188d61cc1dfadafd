//! Tables of figures in Markdown.

/// A table: a value for each row and column.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    /// The names of the rows.
    pub rows: Vec<String>,
    /// Headings, and values by row.
    columns: Vec<(String, Vec<f64>)>,
}

impl Table {
    /// A table without columns.
    pub fn new(title: String, rows: Vec<String>) -> Self {
        Self { title, rows, columns: Vec::new() }
    }

    /// Adds a column, with a value for each row.
    pub fn column(&mut self, heading: &str, values: impl Iterator<Item = f64>) {
        self.columns.push((heading.to_owned(), values.collect()));
    }

    /// The table in Markdown, with its title. Values that are not a number are left empty.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n| |", self.title);
        for (heading, _) in &self.columns {
            text.push_str(&format!(" {heading} |"));
        }
        text.push_str("\n|---|");
        text.push_str(&"---:|".repeat(self.columns.len()));
        for (row, name) in self.rows.iter().enumerate() {
            text.push_str(&format!("\n| {name} |"));
            for (_, values) in &self.columns {
                text.push_str(&format!(" {} |", shown(values[row])));
            }
        }
        text.push_str("\n\n");
        text
    }
}

fn shown(value: f64) -> String {
    match value {
        _ if value.is_nan() => String::new(),
        _ if value.fract() == 0.0 && value.abs() < 1e9 => format!("{value:.0}"),
        _ if value.abs() >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_written_in_markdown() {
        let mut table = Table::new("t".into(), vec!["a".into(), "b".into()]);
        table.column("x", [1.0, 2.5].into_iter());
        table.column("y, s", [f64::NAN, 123.45].into_iter());
        let text =
            "## t\n\n| | x | y, s |\n|---|---:|---:|\n| a | 1 |  |\n| b | 2.500 | 123.5 |\n\n";
        assert_eq!(table.markdown(), text);
    }
}
