/** Entry point for browsers. */

export * from "./index.js";
