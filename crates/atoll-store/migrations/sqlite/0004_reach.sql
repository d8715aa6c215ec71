-- What a sandbox may reach, and whether what it serves is for everybody.
ALTER TABLE sandboxes ADD COLUMN policy TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN public_ports BIGINT NOT NULL DEFAULT 1;
