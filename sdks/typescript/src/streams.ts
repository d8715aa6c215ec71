/** Conversions between byte streams. */

type Pieces = AsyncGenerator<Uint8Array>;
type First = IteratorResult<Uint8Array, unknown>;

/** Turns pieces into a `ReadableStream`; `first` is a result that was read already. */
export function streamOf(pieces: Pieces, first?: First): ReadableStream<Uint8Array<ArrayBuffer>> {
    let next = first;
    return new ReadableStream({
        async pull(controller) {
            const { value, done } = next ?? (await pieces.next());
            next = undefined;
            if (done) {
                controller.close();
            } else {
                controller.enqueue(value as Uint8Array<ArrayBuffer>);
            }
        },
        async cancel() {
            await pieces.return(undefined);
        },
    });
}

/** Joins all pieces. */
export async function collect(pieces: Pieces, first: First): Promise<Uint8Array<ArrayBuffer>> {
    const all: Uint8Array[] = [];
    let length = 0;
    for (let next = first; !next.done; next = await pieces.next()) {
        all.push(next.value);
        length += next.value.length;
    }
    const joined = new Uint8Array(length);
    let at = 0;
    for (const piece of all) {
        joined.set(piece, at);
        at += piece.length;
    }
    return joined;
}

/** Yields the pieces of a body. Not every browser supports iteration over one. */
export async function* piecesOf(response: Response): AsyncGenerator<Uint8Array> {
    const reader = response.body?.getReader();
    try {
        while (reader) {
            const { value, done } = await reader.read();
            if (done) {
                return;
            }
            yield value;
        }
    } finally {
        // Closes the connection if the caller stops reading.
        await reader?.cancel().catch(() => {});
    }
}
