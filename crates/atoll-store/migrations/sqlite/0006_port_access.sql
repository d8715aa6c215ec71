-- Who may use a sandbox's ports: 'private', 'token' or 'public'. Until now every sandbox of the API and every one of
-- E2B's interface that was not secured was public, and its row does not say which of the two created it: all of them
-- become private. Only E2B's interface made secured ones.
ALTER TABLE sandboxes ADD COLUMN port_access TEXT NOT NULL DEFAULT 'private';
UPDATE sandboxes SET port_access = 'token' WHERE public_ports = 0;
ALTER TABLE sandboxes DROP COLUMN public_ports;
