/** Paginated lists. */

import { type CallOptions, type Client, type Query, call } from "./client.js";

/** Yields the items of all pages. `next` is the name of the cursor's query parameter. */
export async function* pages<T>(client: Client, path: string, next: string, query: Query, options: CallOptions): AsyncGenerator<T> {
    let cursor: string | null = null;
    do {
        const request = { ...call(options), query: { ...query, [next]: cursor } };
        const page: { items: T[]; cursor: string | null } = await client.request("GET", path, request, async (response) => ({
            items: await client.parsed<T[]>(response, `GET ${path}`),
            cursor: response.headers.get("x-next-cursor"),
        }));
        yield* page.items;
        cursor = page.cursor;
    } while (cursor !== null);
}

/** Returns the items of all pages. */
export async function listAll<T>(client: Client, path: string, options: CallOptions): Promise<T[]> {
    const all: T[] = [];
    for await (const one of pages<T>(client, path, "cursor", {}, options)) {
        all.push(one);
    }
    return all;
}
