// Schema of the section `log`. No state.

import { Type } from "typebox";

export const logOptions = Type.Object(
  {
    level: Type.Enum(["trace", "debug", "info", "warn", "error", "fatal", "silent"], {
      default: "info",
      description:
        "Least severe level that is written. Errors of clients are `debug`, errors of the server `error`.",
    }),
  },
  { additionalProperties: false },
);
