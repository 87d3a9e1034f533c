// Starts a node from the environment, as the program does, but with an embedded store that flushes
// every 10 ms and has segments of 64 KiB. No setting allows such small values.

import { loadSourcedConfig } from "../../src/config/load.ts";
import { startNode } from "../../src/start.ts";

const { config, places } = loadSourcedConfig({ env: process.env });
const store = { ...config.store, checkpointMs: 10, segmentBytes: 65_536 };
await startNode({ config: { ...config, store }, places }, "test");
