-- Only PostgreSQL samples its tables; both are numbered alike.
select 1;
