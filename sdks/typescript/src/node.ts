/** Entry point for Node. */

import { nodePlatform } from "./node/platform.js";
import { usePlatform } from "./platform.js";

usePlatform(nodePlatform);

export * from "./index.js";
