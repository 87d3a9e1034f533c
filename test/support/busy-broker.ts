// Starts the built node from the environment, as the program does, but with an embedded store that
// flushes every 10 ms and has segments of 64 KiB. No setting allows such small values.

const built = (name: string) => new URL(`../../dist/${name}`, import.meta.url).href;

const { loadConfig } = (await import(
  built("config/load.js")
)) as typeof import("../../src/config/load.ts");
const { startNode } = (await import(built("start.js"))) as typeof import("../../src/start.ts");

const config = loadConfig({ env: process.env });
const store = { ...config.store, checkpointMs: 10, segmentBytes: 65_536 };
await startNode({ ...config, store }, "test");
