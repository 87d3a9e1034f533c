// The reference server of Durable Streams, with files, as a separate program. The argument is its
// data folder. Prints its port.

import { importPackage } from "../../test/durable-streams/packages.ts";

console.info = () => {}; // the server would log to stdout
const [dataDir] = process.argv.slice(2);
const { DurableStreamTestServer } = await importPackage("@durable-streams/server/dist/index.js");
const server = new DurableStreamTestServer({ port: 0, dataDir, compression: false });
process.stdout.write(`${new URL(await server.start()).port}\n`);
