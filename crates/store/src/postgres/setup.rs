//! Connecting: the pools, their settings, the migrations, and the connection that listens for hints.

use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{sequence, tls};
use crate::StoreError;
use crate::check::created_by;
use crate::schema::SchemaState;

mod embedded {
    refinery::embed_migrations!("migrations/postgres");
}

/// Number of the lock under which migrations run.
const MIGRATION_LOCK: i64 = 0x636f_6d65_6261_636b;

#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub url: String,
    /// All tables are in this schema, which is made when it is not there.
    pub schema: String,
    /// Connections for writing and for reading.
    pub writers: usize,
    pub readers: usize,
    /// Connections that interactive reads have for themselves. All but one of them may search.
    pub interactive_readers: usize,
    /// Refuse a server that does not flush what it acknowledges. Only tests of meaning may do without.
    pub require_durability: bool,
    /// How long another process that migrates is waited for.
    pub migration_wait: Duration,
    /// Connect and prepare in the background right after opening, so that the first commands need not.
    pub warm_up: bool,
    /// Breaks admission rules, so that a test can show that it would notice.
    #[cfg(any(test, feature = "conformance"))]
    pub count_without_locks: bool,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> PostgresOptions {
        PostgresOptions {
            url: url.into(),
            schema: "comeback".into(),
            writers: 6,
            readers: 3,
            interactive_readers: 3,
            require_durability: true,
            migration_wait: Duration::from_secs(60),
            warm_up: true,
            #[cfg(any(test, feature = "conformance"))]
            count_without_locks: false,
        }
    }

    pub fn config(&self, settings: &str) -> Result<Config, StoreError> {
        let wanted = tls::Wanted::read(&self.url)?;
        let mut config =
            Config::from_str(&wanted.url).map_err(|error| StoreError::Refused(format!("the database URL: {error}")))?;
        if !self.schema.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') || self.schema.is_empty() {
            return Err(StoreError::Refused(format!("`{}` cannot be the name of a schema", self.schema)));
        }
        config.options(format!("-c search_path={} {settings}", self.schema));
        config.ssl_mode(wanted.mode);
        config.application_name("comeback");
        config.keepalives(true).keepalives_idle(Duration::from_secs(10)).connect_timeout(Duration::from_secs(5));
        config.tcp_user_timeout(Duration::from_secs(15));
        Ok(config)
    }

    fn connector(&self) -> Result<MakeRustlsConnect, StoreError> {
        tls::Wanted::read(&self.url)?.connector()
    }
}

/// For the few statements that carry the load: their plans are pinned, because the same schema is ten times slower or
/// faster by plan alone. Every one of them goes through an index.
pub const HOT: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off \
    -c enable_mergejoin=off -c enable_bitmapscan=off -c enable_material=off -c jit=off \
    -c statement_timeout=15s -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s";

/// For a transaction that others wait for: it is over soon, or taken back.
const BRIEF: &str = "-c lock_timeout=3s -c idle_in_transaction_session_timeout=3s";

/// For everything that is read a page at a time: through indexes and by key, whatever a planner that has not counted yet would guess.
const COLD: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
    -c max_parallel_workers_per_gather=0 -c jit=off -c statement_timeout=10s -c lock_timeout=2s \
    -c idle_in_transaction_session_timeout=10s -c default_transaction_read_only=on";

/// For interactive reads: the same, with a time limit that is only reached where nobody was left to interrupt a statement earlier.
const INTERACTIVE: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
    -c max_parallel_workers_per_gather=0 -c jit=off -c statement_timeout=60s -c lock_timeout=2s \
    -c idle_in_transaction_session_timeout=10s -c default_transaction_read_only=on";

/// For what counts whole tables on such a connection.
pub const WHOLE: &str = "set local enable_seqscan = on; set local max_parallel_workers_per_gather = 2";

pub struct Pools {
    pub write: Pool,
    pub read: Pool,
    pub interactive: Pool,
    /// For giving numbers to what is new, which may be much at once.
    pub number: Pool,
    /// For looking up numbers in the middle of another read, which must not wait for a reader.
    pub learn: Pool,
    /// How a statement that nobody waits for any more is canceled.
    pub tls: MakeRustlsConnect,
    /// For the sequencer of the feed, which writes on behalf of readers and must not wait for a writer.
    pub sequence: Pool,
}

pub async fn pools(options: &PostgresOptions) -> Result<Pools, StoreError> {
    let tls = options.connector()?;
    Ok(Pools {
        tls: tls.clone(),
        write: pool(options.config(HOT)?, &tls, options.writers)?,
        read: pool(options.config(COLD)?, &tls, options.readers)?,
        interactive: pool(options.config(INTERACTIVE)?, &tls, options.interactive_readers)?,
        number: pool(options.config(HOT)?, &tls, 1)?,
        learn: pool(options.config(COLD)?, &tls, 1)?,
        sequence: pool(options.config(&format!("{HOT} {BRIEF}"))?, &tls, 1)?,
    })
}

fn pool(config: Config, tls: &MakeRustlsConnect, size: usize) -> Result<Pool, StoreError> {
    let manager = Manager::from_config(config, tls.clone(), ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_secs(10)))
        .create_timeout(Some(Duration::from_secs(10)))
        .recycle_timeout(Some(Duration::from_secs(5)))
        .build()
        .map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Opens every connection of a pool and prepares statements on each. Best effort: who finds a cold one warms it by using it.
pub async fn warm(pool: Pool, statements: Vec<&'static str>) {
    let mut held = Vec::new();
    for _ in 0..pool.status().max_size {
        let Ok(client) = pool.get().await else { return };
        for statement in &statements {
            if client.prepare_cached(statement).await.is_err() {
                return;
            }
        }
        // Kept until all are open, or the pool would give the same one again.
        held.push(client);
    }
}

/// A connection of its own, outside the pools.
pub async fn connect(options: &PostgresOptions) -> Result<(Client, Connection), StoreError> {
    let remedy = tls::Wanted::read(&options.url)?.remedy();
    options.config("")?.connect(options.connector()?).await.map_err(|error| match error.as_db_error() {
        Some(_) => error.into(),
        // Nothing was asked yet; the deepest cause says most.
        None => {
            let mut why: &dyn std::error::Error = &error;
            while let Some(deeper) = why.source() {
                why = deeper;
            }
            StoreError::Unavailable(match remedy.filter(|_| tls::is_about_tls(&error, why)) {
                Some(remedy) => format!("{why}; {remedy}"),
                None => why.to_string(),
            })
        }
    })
}

pub type Connection = tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Makes the schema what this build needs. One process at a time; the others wait, for `migration_wait` at most.
pub async fn migrate(options: &PostgresOptions) -> Result<(), StoreError> {
    let (mut client, connection) = connect(options).await?;
    let driver = tokio::spawn(connection);
    let outcome = match lock_migrations(&client, options.migration_wait).await {
        Ok(()) => migrate_locked(&mut client, options).await,
        Err(error) => Err(error),
    };
    drop(client);
    let _ = driver.await;
    outcome
}

/// The limit holds for the locks on tables that migrations take, too: who waits for one holds up everybody behind it.
async fn lock_migrations(client: &Client, wait: Duration) -> Result<(), StoreError> {
    client.batch_execute(&format!("set lock_timeout = '{}ms'", wait.as_millis().max(1))).await?;
    let locked = client.execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await;
    let Err(error) = locked else { return Ok(()) };
    if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Err(error.into());
    }
    let holder = match client.query_opt(HOLDER, &[&MIGRATION_LOCK]).await? {
        Some(row) => row.get::<_, String>(0),
        None => "a session that has just ended".into(),
    };
    let seconds = wait.as_secs_f64();
    Err(StoreError::Unavailable(format!(
        "the migration lock was not free within {seconds} s; it is held by {holder}. Wait until that migration is done, or end \
         the session with pg_terminate_backend"
    )))
}

/// The holder of the advisory lock of migrations, in words. Its number is stored in two halves.
const HOLDER: &str = "select format('pid %s (%s, user %s, from %s, connected for %s s, %s)', a.pid,
           coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.usename, '?'),
           coalesce(host(a.client_addr), 'this machine'),
           round(extract(epoch from clock_timestamp() - a.backend_start))::int8, coalesce(a.state, 'state unknown'))
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
      and l.database = (select oid from pg_database where datname = current_database())
      and l.classid::int8 = ($1::int8 >> 32) & 4294967295 and l.objid::int8 = $1::int8 & 4294967295
    limit 1";

async fn migrate_locked(client: &mut Client, options: &PostgresOptions) -> Result<(), StoreError> {
    if options.require_durability {
        let durable: bool = client
            .query_one("select current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on'", &[])
            .await?
            .get(0);
        if !durable {
            return Err(StoreError::Refused(
                "this PostgreSQL runs with fsync or full_page_writes off and would lose acknowledged work in a crash; \
                 turn them on"
                    .into(),
            ));
        }
    }
    let exists: bool = client.query_one("select to_regnamespace($1) is not null", &[&options.schema]).await?.get(0);
    if !exists {
        client.batch_execute(&format!("create schema {}", options.schema)).await?;
    }
    schema(client).await?;
    embedded::migrations::runner()
        .run_async(client)
        .await
        .map_err(|error| StoreError::Schema(format!("the migration failed: {error}")))?;
    sequence::take_over(client).await
}

pub async fn schema(client: &Client) -> Result<SchemaState, StoreError> {
    let exists = client.query_one("select to_regclass('refinery_schema_history') is not null", &[]).await?;
    let found: Option<i32> = match exists.get(0) {
        false => None,
        true => client.query_one("select max(version) from refinery_schema_history", &[]).await?.get(0),
    };
    SchemaState::new(found.unwrap_or(0), embedded::migrations::runner().get_migrations())
}

/// The tables and indexes of the newest schema.
pub fn created_names() -> Vec<String> {
    created_by(embedded::migrations::runner().get_migrations().iter().filter_map(|it| it.sql()))
}
