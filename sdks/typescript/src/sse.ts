/** Parser of server-sent events. */

import { piecesOf } from "./streams.js";

/** An event. */
export interface ServerEvent {
    name: string;
    id: string | undefined;
    data: string;
}

function parse(block: string): ServerEvent | undefined {
    const event: ServerEvent = { name: "message", id: undefined, data: "" };
    for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        const value = line.slice(colon + 2);
        switch (line.slice(0, colon)) {
            case "event":
                event.name = value;
                break;
            case "id":
                event.id = value;
                break;
            case "data":
                event.data += value;
        }
    }
    return event.data === "" ? undefined : event;
}

/** Yields complete events only: the incomplete event of a broken connection is dropped. `heard` is called for each piece of data. */
export async function* serverEvents(response: Response, heard: () => void): AsyncGenerator<ServerEvent> {
    const decoder = new TextDecoder();
    let rest = "";
    heard();
    for await (const piece of piecesOf(response)) {
        heard();
        const blocks = (rest + decoder.decode(piece, { stream: true })).split("\n\n");
        rest = blocks.pop() ?? "";
        for (const block of blocks) {
            const event = parse(block);
            if (event) {
                yield event;
            }
        }
    }
}
