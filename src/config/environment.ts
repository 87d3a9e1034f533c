// Configuration from environment variables: `JINDOU_<PATH>`, and `JINDOU_<PATH>_FILE` naming a file that holds a secret.
// Variables of ours that mean nothing are problems; those that Kubernetes adds by itself are passed over.

import { nearest } from "../lib/nearest.ts";
import type { ConfigKey } from "./keys.ts";
import {
  addText,
  didYouMean,
  type ReadFile,
  reasonOf,
  type Source,
} from "./source.ts";

export type Environment = Readonly<Record<string, string | undefined>>;

/** Names the configuration file; not itself a key. */
export const CONFIG_FILE_ENV = "JINDOU_CONFIG";

/** The settings in `env`. An empty variable counts as absent, as `${NAME:-}` in a compose file makes it. */
export function fromEnvironment(
  env: Environment,
  keys: readonly ConfigKey[],
  readFile: ReadFile,
): Source {
  const source: Source = { settings: [], problems: [] };
  const byEnv = new Map(keys.map((key) => [key.env, key]));
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith("JINDOU_") || text === undefined || text === "")
      continue;
    if (name === CONFIG_FILE_ENV) continue;
    const key = byEnv.get(name);
    const owner = byEnv.get(name.replace(/_FILE$/, ""));
    if (key !== undefined)
      addText(source, key, { text, place: `the environment variable ${name}` });
    else if (owner?.secret && env[owner.env])
      source.problems.push(
        `${owner.env} and ${name} are both set; set one of them.`,
      );
    else if (owner?.secret)
      addSecretFile(source, owner, { path: text, name, readFile });
    else if (!isServiceLink(name, text))
      source.problems.push(
        `The environment variable ${name} is no known setting${didYouMean(nearest(name, byEnv.keys()))}`,
      );
  }
  return source;
}

/** Kubernetes sets these in every pod beside a Service called `jindou…`. */
function isServiceLink(name: string, text: string): boolean {
  return (
    /_SERVICE_(HOST|PORT(_\w+)?)$/.test(name) ||
    /_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$/.test(name) ||
    (name.endsWith("_PORT") && /^(tcp|udp|sctp):\/\//.test(text))
  );
}

function addSecretFile(
  source: Source,
  key: ConfigKey,
  from: {
    readonly path: string;
    readonly name: string;
    readonly readFile: ReadFile;
  },
): void {
  const place = `the file ${from.path} that ${from.name} names`;
  let text: string;
  try {
    text = from.readFile(from.path).replace(/\r?\n$/, "");
  } catch (error) {
    source.problems.push(
      `${key.name}: ${place} cannot be read: ${reasonOf(error)}.`,
    );
    return;
  }
  if (text === "") source.problems.push(`${key.name}: ${place} is empty.`);
  else addText(source, key, { text, place });
}
