// Tests of `jindou`'s command-line parser.

import { parseCommandLine } from "../../src/config/command-line.ts";
import { ConfigError } from "../../src/config/errors.ts";
import {
  CLIENT_COMMANDS,
  type ClientCommand,
  COMMANDS,
  clientCommandOf,
  helpText,
} from "../../src/config/help.ts";
import { t } from "../support/suite.ts";

t.test("the default command is start", async (t) => {
  t.same(parseCommandLine([]), {
    command: "start",
    configFile: undefined,
    flags: [],
    newStore: false,
    json: false,
    sources: false,
  });
  t.equal(parseCommandLine(["--log.level=warn"]).command, "start");
});

t.test(
  "the value of a flag follows = or is the next argument, and flags may precede or follow the command",
  async (t) => {
    const flags = [
      { name: "api.listen", value: ":1" },
      { name: "api.token", value: "a=b" },
    ];
    const commandLines = [
      ["check-config", "--api.listen=:1", "--api.token=a=b"],
      ["--api.listen", ":1", "check-config", "--api.token", "a=b"],
    ];
    for (const argv of commandLines)
      t.match(parseCommandLine(argv), { command: "check-config", flags });
  },
);

t.test("--config names the configuration file and is not a configuration key", async (t) => {
  const line = parseCommandLine(["start", "--config", "/etc/j.json"]);
  t.equal(line.configFile, "/etc/j.json");
  t.same(line.flags, []);
});

t.test("--new-store takes no value, and only the `start` command accepts it", async (t) => {
  t.match(parseCommandLine(["--new-store"]), { command: "start", newStore: true, flags: [] });
  t.match(parseCommandLine(["start", "--new-store"]), { command: "start", newStore: true });
  for (const argv of [
    ["start", "--new-store=yes"],
    ["check-config", "--new-store"],
  ])
    t.throws(() => parseCommandLine(argv), ConfigError, argv.join(" "));
});

t.test("--json and --sources take no value, and only print-config accepts them", async (t) => {
  for (const name of ["json", "sources"]) {
    t.match(parseCommandLine(["print-config", `--${name}`]), { [name]: true });
    for (const argv of [[], ["print-config", `--${name}=yes`], ["migrate"]])
      t.throws(() => parseCommandLine([...argv, `--${name}`]), ConfigError, argv.join(" "));
  }
});

t.test("a command that calls a running node must be the first argument", async (t) => {
  for (const command of Object.keys(CLIENT_COMMANDS) as ClientCommand[]) {
    t.equal(clientCommandOf([command, "--json"]), command);
    t.equal(clientCommandOf(["--json", command]), undefined);
    t.throws(() => parseCommandLine(["--node.id=n1", command]), /before its flags/, command);
  }
});

t.test("a flag may have an empty value", async (t) => {
  t.same(parseCommandLine(["--node.id="]).flags, [{ name: "node.id", value: "" }]);
});

t.test("--help overrides other arguments, and --version runs the `version` command", async (t) => {
  for (const argv of [["--help"], ["-h"], ["help"], ["start", "--help", "--x"]])
    t.equal(parseCommandLine(argv).command, "help", argv.join(" "));
  for (const argv of [["--version"], ["-V"]])
    t.equal(parseCommandLine(argv).command, "version", argv.join(" "));
});

t.test(
  "unknown commands and flags, a second command and a flag without a value are rejected",
  async (t) => {
    const invalid = [
      ["serve"],
      ["toString"],
      ["start", "check-config"],
      ["--nothing"],
      ["--toString"],
      ["-x"],
      ["--api.listen"],
      ["--config"],
      ["--api.listen", "--log.level=warn"],
    ];
    for (const argv of invalid) t.throws(() => parseCommandLine(argv), ConfigError, argv.join(" "));
  },
);

t.test("the error for a misspelt command or flag suggests the closest name", async (t) => {
  t.throws(() => parseCommandLine(["strat"]), /did you mean start\?/);
  t.throws(() => parseCommandLine(["--client.lisen=:1"]), /did you mean --client\.listen\?/);
  t.throws(() => parseCommandLine(["--listen=:1"]), /did you mean --api\.listen\?/);
});

t.test("the help text lists every command", async (t) => {
  for (const name of Object.keys(COMMANDS)) t.match(helpText(), name);
});
