// The built node, started as the binary starts it from the environment, with an embedded store that
// is always busy: it flushes every few milliseconds and its segments are small. Operators cannot
// set that.

const built = (name: string) => new URL(`../../dist/${name}`, import.meta.url).href;

const { loadConfig } = (await import(
  built("config/load.js")
)) as typeof import("../../src/config/load.ts");
const { startNode } = (await import(built("start.js"))) as typeof import("../../src/start.ts");

const config = loadConfig({ env: process.env });
const store = { ...config.store, checkpointMs: 10, segmentBytes: 65_536 };
await startNode({ ...config, store }, "test");
