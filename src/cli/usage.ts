// Table of the arguments and the help of the commands that call a running server, and the functions
// that read it. All functions are pure.

import { parseArgs } from "node:util";
import type { ClientCommand } from "../config/help.ts";
import { IMPORT_TOKEN_ENV, TARGET_TOKEN_ENV, USER_TOKEN_ENV } from "../config/sources.ts";
import { nearest } from "../lib/nearest.ts";
import { usageError } from "./command-error.ts";

interface Flag {
  /** Placeholder for the flag's value in the help. Absent if the flag takes no value. */
  readonly value?: string;
  readonly text: string;
}

type Flags = Readonly<Record<string, Flag>>;

interface Usage {
  /** Positional arguments, as the first line of the help shows them. */
  readonly arguments: string;
  readonly maxWords: number;
  readonly about: string;
  readonly flags: Flags;
  readonly example: string;
}

const DEVICE = { value: "<device>", text: "device class: app, web or desktop" };
const GROUP = { value: "<id>", text: "the group" };

const USAGES: Readonly<Record<ClientCommand, Usage>> = {
  health: {
    arguments: "",
    maxWords: 0,
    about: "Checks whether the node accepts work. Needs no credential.",
    flags: {},
    example: "jindou health && echo up",
  },
  token: {
    arguments: "<uid>",
    maxWords: 1,
    about:
      "Registers a new random token for the user's clients, and prints it. It replaces the user's current\ntoken for the class of devices in --device.",
    flags: {
      device: { ...DEVICE, text: `${DEVICE.text} (default: web, as in the SDK)` },
      main: {
        text: "a main device: when it connects, the other main session of its class ends",
      },
    },
    example: "jindou token alice",
  },
  send: {
    arguments: "--from=<uid> (--to=<uid> | --group=<id>) [text]",
    maxWords: 1,
    about:
      "Sends a text message on behalf of a user. If the text is absent or is -, it is read from\nstandard input. The command returns when the message is durable.",
    flags: {
      from: { value: "<uid>", text: "the sender" },
      to: { value: "<uid>", text: "the receiver of a personal message" },
      group: { ...GROUP, text: "the group, whose members must include the sender" },
      payload: { value: "<json>", text: "a JSON object with an integer type, instead of a text" },
      "client-msg-no": {
        value: "<text>",
        text: "client_msg_no of the message: a retry with the same value is not stored again",
      },
    },
    example: 'jindou send --from=bob --to=alice "Hello Alice"',
  },
  history: {
    arguments: "(--group=<id> | --user=<uid> --with=<uid>)",
    maxWords: 0,
    about: "Prints messages of a channel: by default, the newest messages, oldest first.",
    flags: {
      group: GROUP,
      user: { value: "<uid>", text: "one user of a personal conversation" },
      with: { value: "<uid>", text: "the other user" },
      limit: { value: "<number>", text: "maximum number of messages, 1 to 500 (default: 20)" },
      before: { value: "<seq>", text: "only messages before this sequence number, newest first" },
      after: { value: "<seq>", text: "only the first messages after this sequence number" },
    },
    example: "jindou history --user=alice --with=bob",
  },
  watch: {
    arguments: "<uid>",
    maxWords: 1,
    about: `Connects as a client of the user and prints messages, streams and events as they arrive, until
Ctrl-C. Reconnects automatically. While jindou watch runs, the user is online. Commands (sync_once)
stay in the user's inbox.
The token comes from the environment variable ${USER_TOKEN_ENV}, or from the file that
${USER_TOKEN_ENV}_FILE names. Without a token, the command registers a new one for the class
in --device, as jindou token does.`,
    flags: {
      client: {
        value: "<url>",
        text: "address for clients (default: the node's address, ws:// or wss://)",
      },
      device: {
        ...DEVICE,
        text: `${DEVICE.text} (default: web with ${USER_TOKEN_ENV}, else desktop)`,
      },
      count: { value: "<number>", text: "exit after this number of messages" },
    },
    example: "jindou watch alice",
  },
  events: {
    arguments: "(on | off)",
    maxWords: 1,
    about:
      "Turns the event feed of the store on or off, for all nodes, and prints the cursor from which the\nfeed is complete. Needs the permission system:write. If no node is running, opens the configured\nembedded store (store.path, or JINDOU_STORE_PATH).",
    flags: {},
    example: "jindou events on",
  },
  import: {
    arguments: "wukongim --from=<url> (--dry-run | --to=<url>)",
    maxWords: 1,
    about:
      "Copies users, channels, messages and read positions from a WuKongIM 2.2 server to an empty Jindou\nnode, which serves no clients until the import is closed. The command can be repeated at any\ntime: it continues after the newest message of each channel. Stop the clients of the old server\nbefore the last run, which has --close. With --dry-run, reports what cannot be moved.",
    flags: {
      "dry-run": { text: "report only" },
      to: {
        value: "<url>",
        text: "the HTTP API of the node, which listens on port 5001 by default",
      },
      close: {
        text: "compare the history and unread counts, and close the import if nothing differs",
      },
      compare: {
        value: "<scope>",
        text: "all: compare the whole history (default with --close); new: only what this run stores",
      },
      "accept-differences": { text: "close the import even if the two sides differ" },
      users: {
        value: "<file>",
        text: "additional lines (NDJSON) about users, in the form of POST /admin/import",
      },
      channels: {
        value: "<file>",
        text: "additional lines about channels, their members and lists, in the same form",
      },
      from: {
        value: "<url>",
        text: "the HTTP API of the server, which listens on port 5001 by default",
      },
      rate: { value: "<number>", text: "maximum number of rows read per second (default: 10000)" },
    },
    example: "jindou import wukongim --from=http://10.0.0.5:5001 --to=http://127.0.0.1:5001",
  },
};

const NODE_FLAGS: Flags = {
  api: { value: "<url>", text: "address of the API (default: api.listen in the configuration)" },
  config: { value: "<file>", text: "the node's configuration file (or JINDOU_CONFIG)" },
};
const COMMON: Flags = {
  json: { text: "print JSON, one document on each line" },
  help: { text: "print this text (or -h)" },
};

const CREDENTIALS = `A credential for the node comes from the environment or the configuration file: JINDOU_API_TOKEN,
or JINDOU_ADMIN_PASSWORD for the manager admin. With _FILE at the end, the variable names a file
that contains the secret.`;

const NODE_EXITS = `Exit codes: 0 success, 1 rejected by the node or not ready, 2 invalid arguments or settings, 3 no
response from the node.`;
const IMPORT_CREDENTIALS = `The server's managerToken, if it has one, comes from the environment variable
${IMPORT_TOKEN_ENV}, or from the file that ${IMPORT_TOKEN_ENV}_FILE names. The node's credential comes from
${TARGET_TOKEN_ENV} in the same way.`;
const IMPORT_EXITS =
  "Exit codes: 0 success, 1 a call to a server failed or the data of the two servers differ, 2 invalid\narguments or settings.";

/** Matches the names of flags with which users may try to pass a credential. */
const SECRET_FLAGS = /token|password|secret|credential/i;

export interface Arguments {
  readonly words: readonly string[];
  /**
   * Values of the flags, or "" for a flag without a value. If a flag is repeated, the last value is
   * used.
   */
  readonly flags: ReadonlyMap<string, string>;
}

/**
 * Parses the arguments of a command. Throws a CommandError if an argument is unknown or unexpected,
 * or if a flag lacks its value or has a value that it does not take.
 */
export function parseArguments(command: ClientCommand, argv: readonly string[]): Arguments {
  const flags = flagsOf(command);
  const options = Object.fromEntries(
    Object.entries(flags).map(([name, { value }]) => [
      name,
      { type: value === undefined ? "boolean" : "string" } as const,
    ]),
  );
  const { tokens } = parseArgs({
    args: [...argv],
    options: { ...options, help: { type: "boolean", short: "h" } },
    strict: false,
    tokens: true,
  });
  const words: string[] = [];
  const values = new Map<string, string>();
  for (const token of tokens) {
    if (token.kind === "positional") words.push(token.value);
    if (token.kind !== "option") continue;
    const flag = Object.hasOwn(flags, token.name) ? flags[token.name] : undefined;
    if (flag === undefined) throw unknownFlag(command, token.rawName, Object.keys(flags));
    values.set(token.name, flagValue(flag, token));
  }
  const { maxWords } = USAGES[command];
  const extra = words[maxWords];
  if (extra !== undefined && !values.has("help"))
    throw usageError(
      `jindou ${command} does not take the argument ${JSON.stringify(extra)}. Put quotes around a text with spaces; see jindou ${command} --help.`,
    );
  return { words, flags: values };
}

function flagsOf(command: ClientCommand): Flags {
  const nodeFlags = command === "import" ? {} : NODE_FLAGS;
  return { ...USAGES[command].flags, ...nodeFlags, ...COMMON };
}

function credentialsOf(command: ClientCommand): string {
  return command === "import" ? IMPORT_CREDENTIALS : CREDENTIALS;
}

function unknownFlag(command: ClientCommand, rawName: string, names: readonly string[]) {
  if (SECRET_FLAGS.test(rawName))
    return usageError(
      `${rawName} is not a flag, because other users of this machine can read command lines. ${credentialsOf(command).replaceAll("\n", " ")}`,
    );
  const suggestion = nearest(rawName.replace(/^-+/, ""), names);
  const hint =
    suggestion === undefined
      ? `; see jindou ${command} --help.`
      : `; did you mean --${suggestion}?`;
  return usageError(`${rawName} is not a flag of jindou ${command}${hint}`);
}

function flagValue(
  { value: placeholder }: Flag,
  token: {
    readonly rawName: string;
    readonly value: string | undefined;
    readonly inlineValue: boolean | undefined;
  },
): string {
  const { rawName, value, inlineValue } = token;
  if (placeholder === undefined) {
    if (value !== undefined) throw usageError(`${rawName} takes no value.`);
    return "";
  }
  const isNextFlag = inlineValue === false && value?.startsWith("--");
  if (value === undefined || value === "" || isNextFlag)
    throw usageError(`${rawName} needs a value: ${rawName}=${placeholder}.`);
  return value;
}

export function helpOf(command: ClientCommand): string {
  const { arguments: args, about, example } = USAGES[command];
  const rows = Object.entries(flagsOf(command)).map(([name, { value, text }]) => {
    const flag = value === undefined ? `--${name}` : `--${name}=${value}`;
    return `  ${flag.padEnd(24)} ${text}`;
  });
  const credentials = command === "health" ? "" : `\n${credentialsOf(command)}\n`;
  const exits = command === "import" ? IMPORT_EXITS : NODE_EXITS;
  return `Usage: jindou ${[command, args, "[flags]"].filter((part) => part !== "").join(" ")}

${about}

Flags:
${rows.join("\n")}
${credentials}
${exits}

Example: ${example}
`;
}
