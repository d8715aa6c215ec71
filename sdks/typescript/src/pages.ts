/** Lists, which a server tells in parts. */

import { type CallOptions, type Client, type Query, call } from "./client.js";

/** A list, page after page; `next` is what the next page is asked for by. */
export async function* pages<T>(client: Client, path: string, next: string, query: Query, options: CallOptions): AsyncGenerator<T> {
    let cursor: string | null = null;
    do {
        const asked = { ...call(options), query: { ...query, [next]: cursor } };
        const page: { items: T[]; cursor: string | null } = await client.request("GET", path, asked, async (response) => ({
            items: await client.parsed<T[]>(response, `GET ${path}`),
            cursor: response.headers.get("x-next-cursor"),
        }));
        yield* page.items;
        cursor = page.cursor;
    } while (cursor !== null);
}

/** All of a list. */
export async function whole<T>(client: Client, path: string, options: CallOptions): Promise<T[]> {
    const all: T[] = [];
    for await (const one of pages<T>(client, path, "cursor", {}, options)) {
        all.push(one);
    }
    return all;
}
