import { readFileSync } from "node:fs";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const bundled = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];

/** The notices of what is bundled travel with the build: minifying removes them from the code. */
function licences(): Plugin {
  return {
    name: "licences",
    generateBundle() {
      const texts = bundled.map((name) => {
        const folder = new URL(`./node_modules/${name}/`, import.meta.url);
        const { version } = JSON.parse(readFileSync(new URL("package.json", folder), "utf8"));
        return `${name} ${version}\n\n${readFileSync(new URL("LICENSE", folder), "utf8").trim()}\n`;
      });
      this.emitFile({ type: "asset", fileName: "licences.txt", source: texts.join(`\n${"-".repeat(80)}\n\n`) });
    },
  };
}

export default defineConfig({
  plugins: [licences()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    emptyOutDir: true,
    outDir: process.env.STRETTO_PAGE ?? "../src/stretto/server/static",
    // Names without hashes: the server answers with ETags, and a rebuild changes files instead of replacing them.
    rolldownOptions: { output: { entryFileNames: "app.js", assetFileNames: "app[extname]" } },
    // Inline data would need holes in the content security policy.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  test: { include: ["tests/**/*.test.ts"], env: { TZ: "UTC" } },
  // `npm run dev` beside a running `stretto serve --allowed-host localhost:5173`.
  server: { proxy: { "/v1": "http://127.0.0.1:8787" } },
});
