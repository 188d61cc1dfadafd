-- Version 1 of the schema of a LinkDB that several clouds share. docs/shared.md describes it.
--
-- Clouds may read all tables, and call `append` and `rotate`. These hold the invariants, whatever
-- the cloud's version: a log has no gap, nothing below a floor comes back, quotas hold.

CREATE SCHEMA polyrail;

CREATE TABLE polyrail.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    -- Entries of a writer a day, and at once.
    entries_a_day int NOT NULL DEFAULT 200000,
    retention_days int NOT NULL DEFAULT 365 CHECK (retention_days > 0)
);
INSERT INTO polyrail.meta (version) VALUES (1);

CREATE TABLE polyrail.writer (
    name text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 63),
    -- Entries that it may still append, at that time.
    quota double precision NOT NULL,
    quota_at timestamptz NOT NULL
);

CREATE TABLE polyrail.log (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer text NOT NULL REFERENCES polyrail.writer,
    incarnation bigint NOT NULL,
    -- Entries below this were purged.
    floor bigint NOT NULL DEFAULT 0,
    -- All entries below this were appended.
    next bigint NOT NULL DEFAULT 0 CHECK (next BETWEEN floor AND (1::bigint << 48)),
    written_at timestamptz NOT NULL DEFAULT now(),
    -- The last transaction that changed the row: readers ask for what is new since a snapshot.
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    UNIQUE (writer, incarnation)
) WITH (fillfactor = 50);

-- A partition takes new entries for a week, by the clock of this server, and is dropped when as
-- many later ones exist as retention_days allows. So a clock that jumps shortens the retention by
-- a week at most. Pieces of tracks are in partition 0, which stays.
CREATE TABLE polyrail.part (
    number int PRIMARY KEY,
    begun_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO polyrail.part VALUES (1);

CREATE TABLE polyrail.entry (
    part int NOT NULL,
    log int NOT NULL,
    sequence bigint NOT NULL,
    data bytea NOT NULL CHECK (octet_length(data) BETWEEN 1 AND 1060),
    PRIMARY KEY (log, sequence, part)
) PARTITION BY LIST (part);
CREATE TABLE polyrail.entry_0 PARTITION OF polyrail.entry FOR VALUES IN (0);
CREATE TABLE polyrail.entry_1 PARTITION OF polyrail.entry FOR VALUES IN (1);

-- Takes from a writer's quota; false if it has too little.
CREATE FUNCTION polyrail.take_quota(name_ text, cost bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a_day int := (SELECT entries_a_day FROM polyrail.meta);
BEGIN
    INSERT INTO polyrail.writer VALUES (name_, a_day, now()) ON CONFLICT DO NOTHING;
    -- A clock that was set back adds nothing.
    UPDATE polyrail.writer SET quota_at = now(), quota = least(a_day,
        quota + greatest(0, extract(epoch FROM now() - quota_at)::float8) * a_day / 86400)
        WHERE name = name_;
    UPDATE polyrail.writer SET quota = quota - cost WHERE name = name_ AND quota >= cost;
    RETURN FOUND;
END $$;

-- Appends spans of logs. The first `counts[1]` sequence numbers and data are those of the first
-- log, and so on. Entries below a log's mark or floor are known. A log is left out if its span
-- begins above its mark, if another transaction appends to its writer's logs, if the writer has no
-- quota left, or if there is no room for a further log; the others are returned, with their floors
-- and marks and the number of new entries. Entries of a log become visible in order, because a
-- transaction holds the writer's lock until it has committed. An invalid span is an error.
CREATE FUNCTION polyrail.append(
    writers text[], incarnations bigint[], floors bigint[], firsts bigint[], ends bigint[],
    counts int[], sequences bigint[], data bytea[]
) RETURNS TABLE (index int, log_floor bigint, log_next bigint, added int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    below int := 0;
    above int := 0;
    here polyrail.log;
    oldest polyrail.log;
    is_new boolean;
    known bigint;
    gaps bigint;
    part_ int := (SELECT max(number) FROM polyrail.part);
BEGIN
    FOR i IN 1 .. cardinality(writers) LOOP
        IF num_nulls(writers[i], incarnations[i], floors[i], firsts[i], ends[i], counts[i]) > 0
            OR least(counts[i], floors[i], firsts[i]) < 0
            OR ends[i] < greatest(floors[i], firsts[i]) THEN
            RAISE EXCEPTION 'span % is invalid', i USING ERRCODE = 'invalid_parameter_value';
        END IF;
        below := above + 1;
        above := above + counts[i];
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended(writers[i], 1886350451));
        SELECT * INTO here FROM polyrail.log
            WHERE writer = writers[i] AND incarnation = incarnations[i];
        is_new := NOT FOUND;
        CONTINUE WHEN is_new AND ((SELECT count(*) >= 256 FROM polyrail.log
            WHERE writer = writers[i]) OR (SELECT count(*) >= 16384 FROM polyrail.log));
        known := greatest(coalesce(here.next, 0), floors[i]);
        CONTINUE WHEN firsts[i] > known;
        -- A writer has entries in eight logs. A further one empties the one written longest ago,
        -- unless all were written today: then it waits, so that they do not empty each other.
        oldest := NULL;
        IF ends[i] > known AND (is_new OR here.next = here.floor) THEN
            SELECT * INTO oldest FROM polyrail.log WHERE writer = writers[i] AND next > floor
                ORDER BY written_at DESC, number DESC OFFSET 7 LIMIT 1;
            CONTINUE WHEN abs(extract(epoch FROM now() - oldest.written_at)) < 86400;
        END IF;
        SELECT count(DISTINCT s) INTO added FROM unnest(sequences[below:above]) s
            WHERE s >= known AND s < ends[i];
        -- Numbers without an entry cost less, but enough that no call brings a log to its end.
        gaps := greatest(known, ends[i]) - coalesce(here.next, 0) - added;
        CONTINUE WHEN NOT polyrail.take_quota(writers[i], added + gaps / 1024 +
            CASE WHEN is_new OR oldest.number IS NOT NULL OR floors[i] > here.floor THEN 1000
                ELSE 0 END);
        IF oldest.number IS NOT NULL THEN
            DELETE FROM polyrail.entry WHERE log = oldest.number;
            UPDATE polyrail.log SET floor = next, changed = pg_current_xact_id()
                WHERE number = oldest.number;
        END IF;
        IF is_new THEN
            INSERT INTO polyrail.log (writer, incarnation) VALUES (writers[i], incarnations[i])
                RETURNING * INTO here;
        END IF;
        IF floors[i] > here.floor THEN
            DELETE FROM polyrail.entry WHERE log = here.number AND sequence < floors[i];
        END IF;
        INSERT INTO polyrail.entry
            SELECT DISTINCT ON (s) CASE get_byte(d, 0) WHEN 2 THEN 0 ELSE part_ END, here.number,
                s, d FROM unnest(sequences[below:above], data[below:above]) AS one(s, d)
            WHERE s >= known AND s < ends[i]
            ON CONFLICT DO NOTHING;
        UPDATE polyrail.log SET floor = greatest(floor, floors[i]), next = greatest(known, ends[i]),
            written_at = now(), changed = pg_current_xact_id()
            WHERE number = here.number RETURNING floor, next INTO log_floor, log_next;
        index := i;
        RETURN NEXT;
    END LOOP;
    IF index IS NOT NULL THEN
        PERFORM pg_notify('polyrail', '');
    END IF;
END $$;

-- Begins a new partition when the newest has had its week, and drops those that are too old.
CREATE FUNCTION polyrail.rotate() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s' AS $$
DECLARE
    newest polyrail.part;
    weeks int := (SELECT ceil(retention_days / 7.0) FROM polyrail.meta);
    old int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1886350451) THEN
        RETURN;
    END IF;
    SELECT * INTO newest FROM polyrail.part ORDER BY number DESC LIMIT 1;
    IF newest.begun_at > now() + interval '1 day' THEN
        UPDATE polyrail.part SET begun_at = now() WHERE number = newest.number;
    ELSIF newest.begun_at <= now() - interval '7 days' THEN
        EXECUTE format('CREATE TABLE polyrail.entry_%1$s PARTITION OF polyrail.entry '
            'FOR VALUES IN (%1$s)', newest.number + 1);
        INSERT INTO polyrail.part VALUES (newest.number + 1);
    END IF;
    FOR old IN SELECT number FROM polyrail.part ORDER BY number DESC OFFSET weeks + 1 LOOP
        EXECUTE format('DROP TABLE polyrail.entry_%s', old);
        DELETE FROM polyrail.part WHERE number = old;
    END LOOP;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA polyrail FROM PUBLIC;
GRANT USAGE ON SCHEMA polyrail TO polyrail_cloud;
GRANT SELECT ON ALL TABLES IN SCHEMA polyrail TO polyrail_cloud;
GRANT EXECUTE ON FUNCTION polyrail.append, polyrail.rotate TO polyrail_cloud;
