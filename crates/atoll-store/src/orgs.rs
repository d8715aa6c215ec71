//! Orgs.

use atoll_model::{Org, OrgId};
use sqlx::FromRow;

use crate::{Error, Result, Store, taken, word};

const TABLE: &str = "orgs";
const GET: &str = "SELECT id, name, max_sandboxes, max_timeout, created_at FROM orgs WHERE id = $1";
const LIST: &str = "SELECT id, name, max_sandboxes, max_timeout, created_at FROM orgs ORDER BY created_at DESC, id";
const INSERT: &str = "INSERT INTO orgs (id, name, max_sandboxes, max_timeout, created_at) \
     VALUES ($1, $2, $3, $4, $5)";
const UPDATE: &str =
    "UPDATE orgs SET name = $2, max_sandboxes = $3, max_timeout = $4 WHERE id = $1";

#[derive(FromRow)]
struct Row {
    id: String,
    name: String,
    max_sandboxes: Option<i64>,
    max_timeout: Option<i64>,
    created_at: i64,
}

impl TryFrom<Row> for Org {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Self {
            id: word(TABLE, row.id)?,
            name: row.name,
            max_sandboxes: row.max_sandboxes.map(number),
            max_timeout: row.max_timeout.map(number),
            created_at: row.created_at,
        })
    }
}

impl Store {
    /// An org.
    pub async fn org(&self, id: &OrgId) -> Result<Option<Org>> {
        let _time = self.time("org");
        let query = sqlx::query_as::<_, Row>(GET).bind(id.as_str());
        let row = query.fetch_optional(&self.read).await?;
        row.map(Org::try_from).transpose()
    }

    /// All orgs, newest first.
    pub async fn orgs(&self) -> Result<Vec<Org>> {
        let _time = self.time("orgs");
        let rows = sqlx::query_as::<_, Row>(LIST).fetch_all(&self.read).await?;
        rows.into_iter().map(Org::try_from).collect()
    }

    /// Adds an org; its name must be free.
    pub async fn add_org(&self, org: &Org) -> Result<()> {
        let _time = self.time("add_org");
        let query = sqlx::query(INSERT)
            .bind(org.id.as_str())
            .bind(&org.name)
            .bind(org.max_sandboxes.map(i64::from))
            .bind(org.max_timeout.map(i64::from))
            .bind(org.created_at);
        query
            .execute(&*self.writer())
            .await
            .map_err(taken("the org's name"))?;
        Ok(())
    }

    /// Changes an org's name and limits.
    pub async fn change_org(&self, org: &Org) -> Result<()> {
        let _time = self.time("change_org");
        let query = sqlx::query(UPDATE)
            .bind(org.id.as_str())
            .bind(&org.name)
            .bind(org.max_sandboxes.map(i64::from))
            .bind(org.max_timeout.map(i64::from));
        query
            .execute(&*self.writer())
            .await
            .map_err(taken("the org's name"))?;
        Ok(())
    }
}
