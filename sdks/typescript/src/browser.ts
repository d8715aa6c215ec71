/** The entry for browsers. */

export * from "./index.js";
