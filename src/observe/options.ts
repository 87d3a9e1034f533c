// Schema of the `log` section of the configuration.

import { Type } from "typebox";

export const logOptions = Type.Object(
  {
    level: Type.Enum(["trace", "debug", "info", "warn", "error", "fatal", "silent"], {
      default: "info",
      description:
        "Lowest level that is logged. Errors caused by clients are logged at `debug`, server errors at `error`.",
    }),
    format: Type.Enum(["auto", "json", "pretty"], {
      default: "auto",
      description:
        "Format of the log lines: `json` for programs, `pretty` for people. `auto` means `pretty` if standard output is a terminal, otherwise `json`.",
    }),
  },
  { additionalProperties: false },
);
