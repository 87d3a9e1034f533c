// How the arguments of `jindou` are read.

import { COMMANDS, helpText, parseCommandLine } from "../../src/config/command-line.ts";
import { ConfigError } from "../../src/config/errors.ts";
import { t } from "../support/suite.ts";

t.test("without a command a node is started", async (t) => {
  t.same(parseCommandLine([]), {
    command: "start",
    configFile: undefined,
    flags: [],
  });
  t.equal(parseCommandLine(["--log.level=warn"]).command, "start");
});

t.test(
  "a flag's value follows after = or as the next argument, before or after the command",
  async (t) => {
    const flags = [
      { name: "api.listen", value: ":1" },
      { name: "api.token", value: "a=b" },
    ];
    const ways = [
      ["check-config", "--api.listen=:1", "--api.token=a=b"],
      ["--api.listen", ":1", "check-config", "--api.token", "a=b"],
    ];
    for (const argv of ways) t.match(parseCommandLine(argv), { command: "check-config", flags });
  },
);

t.test("--config names the file and is no key", async (t) => {
  const line = parseCommandLine(["start", "--config", "/etc/j.json"]);
  t.equal(line.configFile, "/etc/j.json");
  t.same(line.flags, []);
});

t.test("an empty value is a value", async (t) => {
  t.same(parseCommandLine(["--node.id="]).flags, [{ name: "node.id", value: "" }]);
});

t.test("help and version win over everything after them", async (t) => {
  for (const argv of [["--help"], ["-h"], ["help"], ["start", "--help", "--x"]])
    t.equal(parseCommandLine(argv).command, "help", argv.join(" "));
  for (const argv of [["--version"], ["-V"]])
    t.equal(parseCommandLine(argv).command, "version", argv.join(" "));
});

t.test("what makes no sense is refused", async (t) => {
  const wrong = [
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
  for (const argv of wrong) t.throws(() => parseCommandLine(argv), ConfigError, argv.join(" "));
});

t.test("a misspelt command or flag is answered with the nearest", async (t) => {
  t.throws(() => parseCommandLine(["strat"]), /did you mean start\?/);
  t.throws(() => parseCommandLine(["--client.lisen=:1"]), /did you mean --client\.listen\?/);
  t.throws(() => parseCommandLine(["--listen=:1"]), /did you mean --api\.listen\?/);
});

t.test("the help text names every command", async (t) => {
  for (const name of Object.keys(COMMANDS)) t.match(helpText(), name);
});
