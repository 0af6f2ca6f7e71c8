//! A code search. Nothing in here knows that there is a limit on what a tool may answer.

use rmcp::{
    Json, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{Implementation, ServerCapabilities, ServerConfig},
    schemars::JsonSchema,
    tool, tool_handler, tool_router,
};
use serde::{Deserialize, Serialize};

/// What every snippet has in it.
pub(crate) const EVERYWHERE: &str = "lookup";
/// The file that is one long line.
pub(crate) const BUNDLE: &str = "dist/bundle.min.js";

/// A code base that is made up, with as many snippets and as large a bundle as is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeSearch {
    pub(crate) snippets: u64,
    pub(crate) bundle: usize,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Search {
    /// What to look for.
    query: String,
    /// How many matches to pass over.
    #[serde(default)]
    offset: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Matches {
    /// How many matches come before the first one.
    offset: u64,
    matches: Vec<Snippet>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Snippet {
    path: String,
    line: u64,
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ListSymbols {
    /// How many symbols to pass over.
    #[serde(default)]
    offset: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Symbols {
    /// How many symbols come before the first one.
    offset: u64,
    module: Module,
}

#[derive(Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Module {
    /// Those who own it.
    owners: [String; 2],
    symbols: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ReadFile {
    path: String,
}

#[tool_router]
impl CodeSearch {
    /// All places where the code says so, with the lines around each.
    #[tool]
    fn search(&self, Parameters(search): Parameters<Search>) -> Json<Matches> {
        let offset = search.offset;
        let snippets = (0..self.snippets).map(snippet);
        let matches = snippets.filter(|snippet| snippet.text.contains(&search.query));
        let matches = matches.skip(offset as usize).collect();
        Json(Matches { offset, matches })
    }

    /// All symbols of the code.
    #[tool]
    fn list_symbols(&self, Parameters(list): Parameters<ListSymbols>) -> Json<Symbols> {
        let offset = list.offset;
        Json(Symbols {
            offset,
            module: Module {
                owners: ["backend".to_owned(), "platform".to_owned()],
                symbols: (offset..self.snippets).map(symbol).collect(),
            },
        })
    }

    /// A file, as text.
    #[tool]
    fn read_file(&self, Parameters(file): Parameters<ReadFile>) -> Result<String, String> {
        match file.path.as_str() {
            BUNDLE => Ok("x".repeat(self.bundle)),
            path => Err(format!("{path:?} is not there")),
        }
    }
}

#[tool_handler]
impl ServerHandler for CodeSearch {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("code-search", "1.0.0"))
    }
}

/// About 1 KiB, and more once it is escaped.
pub(crate) fn snippet(n: u64) -> Snippet {
    let around = "    // \"za\u{17c}\u{f3}\u{142}\u{107}\"\n".repeat(20);
    Snippet {
        path: format!("src/module_{:03}.rs", n / 100),
        line: n % 100,
        text: format!("{around}    let value_{n} = lookup(\"{n}\")?;\n{around}"),
    }
}

/// About as long.
pub(crate) fn symbol(n: u64) -> String {
    format!(
        "crate::module_{:03}::{}value_{n}",
        n / 100,
        "inner::".repeat(140)
    )
}
