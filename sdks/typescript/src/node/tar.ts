/** Tar archives: writer and reader. Long names and large sizes use pax extended headers. */

const BLOCK = 512;

/** An entry of an archive. */
export interface TarEntry {
    name: string;
    type: "file" | "directory" | "link" | "hard link" | "other";
    mode: number;
    size: number;
    /** Unix time in seconds. */
    mtime: number;
    /** Target of a symbolic link; for a hard link, the name of another entry. */
    target: string;
}

const KINDS: Record<string, TarEntry["type"]> = { "0": "file", "\0": "file", "7": "file", "5": "directory", "2": "link", "1": "hard link" };
const FLAGS = { file: "0", directory: "5", link: "2", "hard link": "1", other: "6" };

/** The header of an entry. */
export function header(entry: TarEntry): Buffer {
    const long: string[] = [];
    const bytes = (text: string) => Buffer.byteLength(text);
    if (bytes(entry.name) > 100) {
        long.push(record("path", entry.name));
    }
    if (bytes(entry.target) > 100) {
        long.push(record("linkpath", entry.target));
    }
    if (entry.size >= 8 ** 11) {
        long.push(record("size", String(entry.size)));
    }
    const own = block(entry.name, FLAGS[entry.type], entry.mode, entry.size >= 8 ** 11 ? 0 : entry.size, entry.mtime, entry.target);
    if (long.length === 0) {
        return own;
    }
    const text = Buffer.from(long.join(""));
    return Buffer.concat([block("pax", "x", 0o644, text.length, entry.mtime, ""), text, padding(text.length), own]);
}

/** The padding after `size` bytes of contents. */
export function padding(size: number): Buffer {
    return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);
}

/** The end of an archive. */
export const END = Buffer.alloc(2 * BLOCK);

/** `LENGTH KEY=VALUE\n`, where the length counts itself. */
function record(key: string, value: string): string {
    const rest = Buffer.byteLength(` ${key}=${value}\n`);
    let length = rest + String(rest).length;
    length = rest + String(length).length;
    return `${length} ${key}=${value}\n`;
}

function block(name: string, flag: string, mode: number, size: number, mtime: number, target: string): Buffer {
    const made = Buffer.alloc(BLOCK);
    const octal = (value: number, at: number, width: number) => made.write(value.toString(8).padStart(width - 1, "0"), at);
    made.write(name, 0, 100);
    octal(mode & 0o7777, 100, 8);
    octal(0, 108, 8);
    octal(0, 116, 8);
    octal(size, 124, 12);
    octal(Math.max(0, Math.floor(mtime)), 136, 12);
    made.write("        ", 148);
    made.write(flag, 156);
    made.write(target, 157, 100);
    made.write("ustar\x0000", 257);
    const sum = made.reduce((total, byte) => total + byte, 0);
    made.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
    return made;
}

/** Reads given numbers of bytes from pieces. */
class Bytes {
    readonly #pieces: AsyncIterator<Uint8Array>;
    #rest: Buffer = Buffer.alloc(0);

    constructor(pieces: AsyncIterable<Uint8Array>) {
        this.#pieces = pieces[Symbol.asyncIterator]();
    }

    /** At least one and at most `most` bytes; `undefined` at the end. */
    async some(most: number): Promise<Buffer | undefined> {
        while (this.#rest.length === 0) {
            const { value, done } = await this.#pieces.next();
            if (done) {
                return undefined;
            }
            this.#rest = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
        }
        const taken = this.#rest.subarray(0, most);
        this.#rest = this.#rest.subarray(taken.length);
        return taken;
    }

    /** Exactly `count` bytes. */
    async exactly(count: number): Promise<Buffer> {
        const parts: Buffer[] = [];
        for (let left = count; left > 0; ) {
            const part = await this.some(left);
            if (!part) {
                throw new Error("the archive ends in the middle");
            }
            parts.push(part);
            left -= part.length;
        }
        return Buffer.concat(parts, count);
    }
}

/** Maximum size of an extended header, in bytes. */
const LONGEST = 1 << 20;

/** The entries of an archive, each with its contents, which must be read before the next. */
export async function* entries(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<{ entry: TarEntry; contents: AsyncGenerator<Buffer> }> {
    const bytes = new Bytes(pieces);
    let extended: { path?: string; linkpath?: string; size?: string } = {};
    for (;;) {
        const head = await bytes.exactly(BLOCK);
        if (head.every((byte) => byte === 0)) {
            return;
        }
        const flag = String.fromCharCode(head[156] ?? 0);
        let size = number(head, 124, 12);
        if ("xgLK".includes(flag)) {
            if (size > LONGEST) {
                throw new Error("the archive has a name that is too long");
            }
            const text = (await bytes.exactly(size)).toString();
            await bytes.exactly(padding(size).length);
            const plain = text.replace(/\0+$/, "");
            if (flag === "x") {
                extended = { ...extended, ...records(text) };
            } else if (flag !== "g") {
                extended = { ...extended, [flag === "L" ? "path" : "linkpath"]: plain };
            }
            continue;
        }
        size = extended.size === undefined ? size : Number(extended.size);
        // Links and devices have no contents, whatever their header contains.
        size = "123456".includes(flag) ? 0 : size;
        const prefix = string(head, 345, 155);
        const short = string(head, 0, 100);
        const entry: TarEntry = {
            name: extended.path ?? (prefix !== "" && head.toString("latin1", 257, 263) === "ustar\0" ? `${prefix}/${short}` : short),
            type: KINDS[flag] ?? "other",
            mode: number(head, 100, 8) & 0o7777,
            size,
            mtime: number(head, 136, 12),
            target: extended.linkpath ?? string(head, 157, 100),
        };
        extended = {};
        let left = size;
        const contents = (async function* () {
            while (left > 0) {
                const part = await bytes.some(left);
                if (!part) {
                    throw new Error("the archive ends in the middle");
                }
                left -= part.length;
                yield part;
            }
        })();
        yield { entry, contents };
        for await (const _ of contents) {
            // Skips contents that the caller did not read.
        }
        await bytes.exactly(padding(size).length);
    }
}

function string(head: Buffer, at: number, width: number): string {
    const field = head.subarray(at, at + width);
    const end = field.indexOf(0);
    return field.toString("utf8", 0, end < 0 ? width : end);
}

function number(head: Buffer, at: number, width: number): number {
    if ((head[at] ?? 0) & 0x80) {
        // Too large for octal.
        return Number(head.readBigUInt64BE(at + width - 8));
    }
    return Number.parseInt(string(head, at, width).trim() || "0", 8);
}

function records(text: string): Record<string, string> {
    const found: Record<string, string> = {};
    let bytes = Buffer.from(text);
    while (bytes.length > 0) {
        const length = Number.parseInt(bytes.toString("latin1", 0, 20), 10);
        if (!(length > 0)) {
            break;
        }
        const line = bytes.toString("utf8", 0, length - 1);
        const [, key, value] = line.match(/^\d+ ([^=]+)=([\s\S]*)$/) ?? [];
        if (key !== undefined && value !== undefined) {
            found[key] = value;
        }
        bytes = bytes.subarray(length);
    }
    return found;
}
