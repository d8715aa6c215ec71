/** A random unique name. Without HTTPS, browsers have no `crypto.randomUUID`. */
export function randomName(): string {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
