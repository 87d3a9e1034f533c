// A program that the benchmark overview can start as WuKongIM: Jindou with WuKongIM's form of the
// API and without tokens, on the ports that the configuration file of WuKongIM names. Arguments:
// `--config` and the path of the file.

import { readFileSync } from "node:fs";

interface Configuration {
  readonly httpAddr: string;
  readonly wsAddr: string;
  readonly rootDir: string;
}

const [, , , path = ""] = process.argv;
const { httpAddr, wsAddr, rootDir } = JSON.parse(readFileSync(path, "utf8")) as Configuration;
Object.assign(process.env, {
  JINDOU_API_LISTEN: httpAddr,
  JINDOU_API_DIALECT: "wukongim",
  JINDOU_CLIENT_LISTEN: wsAddr.replace("ws://", ""),
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_STORE_PATH: rootDir,
});
process.argv.length = 2;
await import(new URL("../../dist/main.js", import.meta.url).href);
