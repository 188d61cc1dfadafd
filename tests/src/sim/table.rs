//! Figures side by side.

/// One column: a heading and a value a row.
#[derive(Clone, Debug)]
pub struct Column {
    /// What it shows.
    pub heading: String,
    /// By row.
    pub values: Vec<f64>,
}

/// A table in Markdown.
pub fn table(rows: &[String], columns: &[Column]) -> String {
    let mut text = String::from("| |");
    for column in columns {
        text.push_str(&format!(" {} |", column.heading));
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns.len()));
    for (row, name) in rows.iter().enumerate() {
        text.push_str(&format!("\n| {name} |"));
        for column in columns {
            let value = column.values.get(row).copied().unwrap_or(f64::NAN);
            text.push_str(&format!(" {value:.3} |"));
        }
    }
    text.push('\n');
    text
}
