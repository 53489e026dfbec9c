"""Lightning Thunder on Huawei Ascend NPUs."""
