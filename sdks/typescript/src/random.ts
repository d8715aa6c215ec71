/** A name that nobody else has. Pages that came without HTTPS have no `crypto.randomUUID`. */
export function randomName(): string {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
