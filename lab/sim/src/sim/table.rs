//! Figures side by side, for people and for programs.

/// One column: a heading and a value a row.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its heading.
    pub heading: String,
    /// By row.
    pub values: Vec<f64>,
}

/// A table in Markdown; a cell without a number is empty.
pub fn table(rows: &[String], columns: &[Column]) -> String {
    let mut text = String::from("| |");
    for column in columns {
        text.push_str(&format!(" {} |", column.heading));
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(columns.len()));
    for (row, name) in rows.iter().enumerate() {
        text.push_str(&format!("\n| {name} |"));
        for column in columns {
            text.push_str(&format!(" {} |", shown(value(column, row))));
        }
    }
    text.push('\n');
    text
}

/// The same as lines of `table,row,column,value`.
pub fn csv(name: &str, rows: &[String], columns: &[Column]) -> String {
    let mut text = String::new();
    for (row, who) in rows.iter().enumerate() {
        for column in columns {
            let (heading, value) = (column.heading.replace(',', " "), value(column, row));
            text.push_str(&format!("{name},{who},{heading},{value}\n"));
        }
    }
    text
}

fn value(column: &Column, row: usize) -> f64 {
    column.values.get(row).copied().unwrap_or(f64::NAN)
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
    fn a_table_is_markdown_and_csv() {
        let rows = ["a".to_owned(), "b".to_owned()];
        let columns = [
            Column { heading: "x".into(), values: vec![1.0, 2.5] },
            Column { heading: "y, s".into(), values: vec![f64::NAN, 123.45] },
        ];
        let text = "| | x | y, s |\n|---|---:|---:|\n| a | 1 |  |\n| b | 2.500 | 123.5 |\n";
        assert_eq!(table(&rows, &columns), text);
        let lines = "t,a,x,1\nt,a,y  s,NaN\nt,b,x,2.5\nt,b,y  s,123.45\n";
        assert_eq!(csv("t", &rows, &columns), lines);
    }
}
