-- Whether fsync inside a sandbox reaches the disk.
ALTER TABLE sandboxes ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;
